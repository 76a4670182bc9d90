"""Pictures from disk or rendered by code: prepared once, cached, and loaded in batches."""
