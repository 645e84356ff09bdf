"""The register tile of matrix multiplication: the rows and vectors that fit the target's registers.

One tile of C is `rows` x `vectors * lanes` numbers, all in vector registers while the loop over k
runs (K. Goto and R. van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS
34(3), 2008; F. Van Zee and R. van de Geijn, "BLIS", ACM TOMS 41(3), 2015). Of 32 registers
(AVX-512, NEON) 24 hold the tile, of 16 (AVX2, SSE) 12; the others hold a row of B and elements of
A.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache

from llvmlite import ir

from weft.codegen.elements import F32, F64, HALVES

#: What a product of each dtype is computed in.
ACCUMULATOR = {"f32": "f32", "f64": "f64", "f16": "f32", "bf16": "f32"}


@dataclass(frozen=True, slots=True)
class Tile:
    """`rows` x (`vectors` of `lanes` elements) of the accumulator dtype.

    masks: the target has masked vector loads (AVX, AVX-512), so rows of B that do not fill a vector
    can be read where they are.
    """

    dtype: str
    lanes: int
    rows: int
    vectors: int
    masks: bool

    @property
    def columns(self) -> int:
        """Columns of a full tile: the width of a packed panel of B."""
        return self.lanes * self.vectors

    @property
    def element(self) -> ir.Type:
        """LLVM type of an accumulator."""
        return F64 if self.dtype == "f64" else F32

    @property
    def key(self) -> str:
        """The part of a kernel's key that names this tile."""
        return f"{self.dtype}-{self.rows}x{self.vectors}x{self.lanes}{'m' if self.masks else ''}"


@cache
def target_vector_bits() -> int:
    """Width of the widest vector registers of this machine: 512, 256 or 128."""
    features = _host_features()
    if features.get("avx512f") and features.get("avx512vl") and features.get("avx512dq"):
        return 512
    return 256 if features.get("avx2") and features.get("fma") else 128


@cache
def _host_features() -> dict[str, bool]:
    binding = importlib.import_module("llvmlite.binding")
    return dict(binding.get_host_cpu_features())


@cache
def tile_of(dtype: str) -> Tile:
    """The tile of a product of `dtype` ("f32", "f64", "f16", "bf16") on this machine."""
    accumulator = ACCUMULATOR[dtype]
    bits = target_vector_bits()
    registers = 32 if bits == 512 or _host_features().get("neon") else 16
    lanes = bits // (64 if accumulator == "f64" else 32)
    masks = bits > 128 and dtype not in HALVES
    return Tile(accumulator, lanes, 8 if registers == 32 else 4, 3, masks)
