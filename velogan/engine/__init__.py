"""The engine: runs an objective's phases on any device, and keeps the state that must survive a restart."""
