"""Kernel source carried out without a GPU, and what it must not do found out."""

from weft.codegen.cuda.emulator.faults import EmulationError
from weft.codegen.cuda.emulator.launch import run

__all__ = ["EmulationError", "run"]
