"""Network architectures, their configuration, and conversion of the reference implementation's networks."""
