"""Kernel source carried out without a GPU, and what it must not do found out."""

from weft.codegen.cuda.emulator.launch import run
from weft.codegen.cuda.reading.faults import EmulationError

__all__ = ["EmulationError", "run"]
