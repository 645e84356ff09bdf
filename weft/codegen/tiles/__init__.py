"""Register tiles: the micro-kernel of products, convolutions and attention, and its packing.

Enters: addresses and strides of operands. Leaves: code that adds products to a tile of results.
Imports: `codegen/llvm`, `codegen/scalar`."""
