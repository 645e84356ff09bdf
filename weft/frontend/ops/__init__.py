"""The public functions on tensors: argument checks, promotion, and the ops they append."""
