"""Pictures, from disk or rendered, which are prepared once and loaded in batches."""
