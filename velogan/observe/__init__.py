"""Observing a run: statistics, clock, log, sample pictures, live progress, profiles."""
