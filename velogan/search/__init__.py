"""Architecture search: the method, its its supernets, and a record of what it chooses."""
