"""Objectives: the losses of methods, as lists of phases, and their state."""
