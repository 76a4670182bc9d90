"""Train many runs that differ in some fields, scheduled by Ray Tune, and compare their scores."""
