"""What a run keeps on disk: checkpoints, and the lock of its folder."""
