"""Monitoring of a run: statistics, clock, log, sample grids, live progress."""
