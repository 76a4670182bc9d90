"""Domains: find pictures, prepare them once, load batches."""
