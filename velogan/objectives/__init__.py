"""Objectives: methods as lists of phases, with their losses and state."""
