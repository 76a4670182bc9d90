"""How good a run is: scores, distances, the validation split, sample grids."""
