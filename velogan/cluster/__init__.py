"""Several devices: what they would gain, before there are any."""
