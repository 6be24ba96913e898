"""The training side: what runs beside and inside the training process of a node."""
