"""Architecture search: the method, its supernets, budgets, and what it has chosen."""
