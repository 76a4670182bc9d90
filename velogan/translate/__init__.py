"""Trained generators at work: found, loaded, and run over picture files."""
