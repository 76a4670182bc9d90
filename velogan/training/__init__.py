"""Training runs: prepare, resolve settings, train, resume and record, in one process or several."""
