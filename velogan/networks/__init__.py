"""Network architectures, their configuration, and import of the reference's networks."""
