"""LLVM: modules compiled and linked in this process, and kept on disk."""
