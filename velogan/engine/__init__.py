"""The engine: plays an objective's phases, on any device, and keeps what must survive a restart."""
