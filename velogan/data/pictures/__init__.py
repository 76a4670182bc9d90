"""Picture files: read and written at their native bit depth."""
