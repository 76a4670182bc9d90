"""Measurements of speed: comparisons of methods and modes, and a step under the profiler."""
