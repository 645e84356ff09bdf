"""Mathematical functions that vectorise, with their error bounds (`functions.py` lists them).

Enters: values of f32 or f64 in registers. Leaves: values in registers.
Imports: `codegen/llvm`."""
