"""Pictures from disk or rendered, prepared once, and handed out in batches."""
