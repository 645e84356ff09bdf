"""Control flow: the tree of a step's calls, loops in registers, batch-parallel loops, interruption.

Enters: `cond`, `while` and `scan` ops. Leaves: one kernel for each, as LLVM or as
source, or its body for some rows. Imports: all of `codegen` but `steps` and `cuda`."""
