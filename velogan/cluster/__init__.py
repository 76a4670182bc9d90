"""Work that many processes and machines share: Ray, and translation of more pictures than one machine bears."""
