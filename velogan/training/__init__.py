"""A run from start to end: built, decided, recorded, continued, by one process or by several."""
