"""Run a benchmark with weft, and the peers that can be told, on a smaller instruction set.

    python benchmarks/on_isa.py x86-64-v3 benchmarks/gemm.py --rounds 15

weft gets WEFT_TARGET; PyTorch's own kernels ATEN_CPU_CAPABILITY, its oneDNN ONEDNN_MAX_CPU_ISA;
OpenBLAS a core type of that set; XLA --xla_cpu_max_isa. Not all obeys: XLA's matrix products (JAX
0.10) choose their kernels by the processor, and so does MKL in PyTorch on processors of AMD. Where
there is AVX-512, products for x86-64-v3 are weft's AVX2 beside JAX's AVX-512. torch.compile gets a
cache of its own: what it finds there of another set it runs all the same, and crashes.
"""

from __future__ import annotations

import os
import sys
import tempfile

# instruction set -> what the peers call it
PEERS = {
    "x86-64-v2": {
        "OPENBLAS_CORETYPE": "Nehalem", "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41", "XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2",
    },
    "x86-64-v3": {
        "OPENBLAS_CORETYPE": "Zen", "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2", "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    },
}  # fmt: skip


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1] not in PEERS:
        sys.exit(f"usage: on_isa.py {'|'.join(PEERS)} BENCHMARK.py [ARGUMENTS]")
    isa, *command = sys.argv[1:]
    folder = os.path.join(tempfile.gettempdir(), f"torchinductor-{isa}")
    own = {"WEFT_TARGET": isa, "TORCHINDUCTOR_CACHE_DIR": folder}
    environment = {**os.environ, **PEERS[isa], **own}
    os.execve(sys.executable, [sys.executable, *command], environment)


if __name__ == "__main__":
    main()
