"""Engine modes and methods compared with each other and with the roofline: `python -m benchmarks.bench`."""
