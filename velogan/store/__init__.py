"""What is kept on disk between processes: checkpoints and the lock of a run folder."""
