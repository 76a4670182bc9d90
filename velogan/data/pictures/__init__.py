"""Picture files: read and written at their own depth."""
