"""Work that many devices share by Ray."""
