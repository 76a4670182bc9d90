"""Evaluation of runs: scores, distances, validation during training, sample grids."""
