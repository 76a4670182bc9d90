"""Where time goes: methods and modes against each other, and a step under the profiler."""
