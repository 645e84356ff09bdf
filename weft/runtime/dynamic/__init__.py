"""Ops whose results have sizes that depend on values, and ops on strings, as native kernels that
run without the GIL.

Enters: the name of an op, arrays and attributes. Leaves: the arrays of its results, which are the
interpreter's, bit for bit; None where its reference is to decide: for a bad operand, whose error
it raises, and for what has no kernel. Imports: `codegen.dynamic`, `runtime.native`."""
