"""Native code of the thread pool: its memory, jobs, workers, chunks.

Enters: kernel calls that are worth cutting. Leaves: kernels that carry them out over threads.
Imports: `codegen/llvm`."""
