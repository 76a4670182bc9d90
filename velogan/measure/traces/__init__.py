"""What a profiler recorded: read, attributed to phases and networks, counted."""
