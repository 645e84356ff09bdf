"""`wf.quantization`: numbers of 8 and 4 bits in the place of floats, for models that run.

Enters: tensors, functions of them. Leaves: ops, or results; `quantize` gives functions. Imports:
`ops`, `autodiff`, `bundle`, `compile`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.quantization.convert import Layer, QuantizedFunction, quantize
from weft.frontend.quantization.linear import (
    dequantize_linear,
    fake_quantize,
    pack_int4,
    quantize_linear,
    unpack_int4,
)
from weft.frontend.quantization.report import LayerError, Report
from weft.frontend.quantization.weights import QuantizedMatrix, matmul, quantize_weights

__all__ = [
    "Layer",
    "LayerError",
    "QuantizedFunction",
    "QuantizedMatrix",
    "Report",
    "dequantize_linear",
    "fake_quantize",
    "matmul",
    "pack_int4",
    "quantize",
    "quantize_linear",
    "quantize_weights",
    "unpack_int4",
]

if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__, __dir__ = _only_public(__name__, __all__)
