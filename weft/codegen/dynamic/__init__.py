"""Kernels of ops whose results have sizes that depend on values, and of strings, as scalar code.

Enters: the dtype and the bytes of a row. Leaves: a `Kernel`, written in `native_language`. The work
has two phases: a kernel counts, each of its units a fixed chunk of the elements; whoever calls it
allocates the results; another kernel fills them. `kernels` makes a kernel of a function of the
other modules. Imports: `native_language` and `llvm`."""
