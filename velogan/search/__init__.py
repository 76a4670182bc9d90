"""Architecture search: the method, its supernets, and the record of its softmax weights and genotype."""
