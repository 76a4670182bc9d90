"""Load trained generators and translate images and files with them."""
