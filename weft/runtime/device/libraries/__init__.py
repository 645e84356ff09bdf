"""NVIDIA's libraries for products and convolutions, where those are faster than weft's own kernels.

Enters: `Gemm`, `Conv`, a planned product. Leaves: the call of the algorithm that was fastest here.
Imports: `runtime.device`; cuBLASLt and cuDNN when they are first needed."""
