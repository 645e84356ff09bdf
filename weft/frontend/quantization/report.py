"""Reports of how far a quantised function is from the one in float32, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.ir.dataclass import dataclass

Array = np.ndarray[Any, Any]


def relative_error(exact: Array, found: Array) -> float:
    """The root of the sum of squared differences, in parts of that of what is exact."""
    a, b = exact.astype(np.float64), found.astype(np.float64)
    size, apart = float(np.sqrt((a * a).sum())), float(np.sqrt(((a - b) ** 2).sum()))
    return apart / size if size else (0.0 if not apart else float("inf"))


@dataclass(frozen=True, slots=True)
class LayerError:
    """One layer of a `Report`. bits: of its weights; activations: None, "dynamic" or "static";
    nbytes: of its weights, in float32 and as they are; error: relative, of what it gives."""

    name: str
    op: str
    shape: tuple[int, ...]
    bits: int
    activations: str | None
    float_nbytes: int
    nbytes: int
    error: float


@dataclass(frozen=True, slots=True)
class Report:
    """Relative errors of the layers, in order, and of the results that are floats; str() shows
    them."""

    layers: tuple[LayerError, ...]
    results: tuple[float, ...]

    @property
    def nbytes(self) -> int:
        """Of the weights of all layers."""
        return sum(one.nbytes for one in self.layers)

    @property
    def float_nbytes(self) -> int:
        """The same in float32."""
        return sum(one.float_nbytes for one in self.layers)

    def __str__(self) -> str:
        head = ("layer", "op", "weights", "bits", "activations", "bytes", "error")
        rows: list[Sequence[str]] = [head]
        for one in self.layers:
            shape = "x".join(map(str, one.shape))
            kind = one.activations or "float32"
            rows.append(
                (one.name, one.op, shape, str(one.bits), kind, str(one.nbytes), f"{one.error:.2%}")
            )
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = [
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        part = self.nbytes / self.float_nbytes if self.float_nbytes else 1.0
        errors = ", ".join(f"{e:.2%}" for e in self.results) or "none in floats"
        lines.append(f"results: {errors}; weights: {self.nbytes} bytes, {part:.2f} of float32's")
        return "\n".join(lines)


def report_of(layers: Sequence[LayerError], results: Sequence[tuple[Array, Array]]) -> Report:
    """A report, of pairs of results."""
    errors = [relative_error(a, b) for a, b in results if a.dtype.kind == "f"]
    return Report(tuple(layers), tuple(errors))
