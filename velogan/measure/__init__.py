"""Measurements of a training step: its cost, and a profile."""
