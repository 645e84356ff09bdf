"""Plain loop nests as CUDA launches."""
