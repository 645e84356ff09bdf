"""Reads kernel source and settles the type of every expression, for the emulator and for LLVM."""
