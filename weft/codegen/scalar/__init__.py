"""One elementwise operation on one element, as LLVM instructions, for every dtype.

Enters: an op's name, a dtype, values in registers. Leaves: a value (`elementwise.py`).
Imports: `codegen/llvm`, `codegen/vector`."""
