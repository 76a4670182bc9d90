"""Domains: folders of pictures found, prepared once, and loaded as batches."""
