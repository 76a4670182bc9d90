"""Architecture search: the method, its supernets, and a record of what it chooses."""
