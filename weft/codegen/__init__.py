"""Code generation: a fused graph to native kernels, a step to a table of their calls.

Enters: a fused graph (`weft.passes`). Leaves: kernels in the process, a step's program and table.
Imports: `weft.ir`. The files of this folder are what writers of kernels share, above `llvm` and
`pool`; then, each on those before it: `vector`, `scalar`, `tiles`, `nests`, `products`, `windows`,
`kernels`, `loops`, `steps`, and for GPUs `cuda`."""
