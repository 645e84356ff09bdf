"""Emulator: kernel source run with NumPy, without a GPU, with checks for races and bad accesses.

Enters: `CudaKernel`, a grid and arrays (`launch.py`). Leaves: the arrays changed, or an
`EmulationError` with its line.
Imports: `codegen/cuda/source`, NumPy, SciPy."""

from weft.codegen.cuda.emulator.launch import run
from weft.codegen.cuda.source.typecheck import EmulationError

__all__ = ["EmulationError", "run"]
