"""Many devices: work that they share by Ray, and what they would gain, before there are any."""
