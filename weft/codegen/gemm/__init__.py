"""Matrix products: packing, micro-kernel, epilogues."""
