"""Sequences: losses and decoders of alignments (CTC), searches for the best sequence, attention,
and cells made of cells.

Enters: tensors, padded to one length, with their lengths. Leaves: tensors; loops are native code.
Imports: what `nn` imports, and `nn.recurrent`, `nn.activations`, `nn.losses`, `nn.module`."""
