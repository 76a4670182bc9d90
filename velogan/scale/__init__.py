"""Distribution of work over processes and machines by Ray."""
