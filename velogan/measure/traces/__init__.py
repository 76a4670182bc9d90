"""Traces of a profiler: read as a timeline, and summarised in tables."""
