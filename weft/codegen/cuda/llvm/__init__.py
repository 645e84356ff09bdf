"""Kernel source to PTX by LLVM: its NVPTX target, which llvmlite ships."""
