"""Networks: pure mathematics on image tensors."""
