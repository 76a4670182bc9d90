"""A forecast of what more devices and hosts would give one training: `python -m benchmarks.simulate`."""
