"""The built-in data set, drawn by code."""
