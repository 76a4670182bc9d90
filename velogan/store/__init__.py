"""The files of a run: checkpoints, its record, and the lock of its folder."""
