"""digamma and lgamma as device functions, with the CPU's tables (`codegen/vector/gamma.py`).

libdevice has no digamma, and its lgamma of f64 spills registers. digamma of f32 computes in f32:
within 5 units in the last place for positive numbers; for negative ones, between which its zeros
are, the same of the larger of the two terms that cancel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.codegen.cuda.scalars.memory import literal
from weft.codegen.vector import gamma

Lines = list[str]


def digamma(dtype: str) -> str:
    """The definition of `wf_digamma_f32` or `wf_digamma_f64`."""
    w = _Writer(dtype)
    body = [*w.reduced(), *w.digamma_positive(), *w.digamma_reflected()]
    return "\n".join([f"def wf_digamma_{dtype}(a):", *body, ""])


def lgamma(dtype: str) -> str:
    """The definition of `wf_lgamma_f32` (libdevice's, but at -inf) or `wf_lgamma_f64`."""
    w = _Writer(dtype)
    low = w.number(float("-inf"))
    body = [f"    return a if a == {low} else lgamma_{dtype}(a)"]
    if dtype == "f64":
        body = [*w.reduced(), *w.lgamma_positive(), *w.lgamma_reflected()]
    return "\n".join([f"def wf_lgamma_{dtype}(a):", *body, ""])


class _Writer:
    """Lines at one dtype; `{T}` in a text stands for it."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def number(self, value: float) -> str:
        return literal(self.dtype, value)

    def lines(self, *texts: str) -> Lines:
        return ["    " + text.replace("{T}", self.dtype) for text in texts]

    def horner(self, name: str, x: str, coefficients: Sequence[float]) -> Lines:
        """Lines that leave the polynomial in `x`, constant first, in `name`."""
        *rest, last = (self.number(c) for c in coefficients)
        texts = [f"{name} = fma_{{T}}({name}, {x}, {c})" for c in reversed(rest)]
        return self.lines(f"{name} = {last}", *texts)

    def reduced(self) -> Lines:
        """y > 0: a, or 1 - a where a < 0; f: a less the nearest integer."""
        return self.lines(
            "y = {T}({T}(1) - a) if a < {T}(0) else a",
            "f = {T}(a - rint_{T}(a))",
            "square = {T}(f * f)",
        )

    # -- digamma ----------------------------------------------------------------------------------

    def root(self) -> list[float]:
        """digamma's positive zero as a sum of numbers of the dtype."""
        if self.dtype == "f64":
            return list(gamma.DIGAMMA_ROOT)
        high = float(np.float32(gamma.DIGAMMA_ROOT[0]))
        return [high, gamma.DIGAMMA_ROOT[0] - high + gamma.DIGAMMA_ROOT[1]]

    def digamma_positive(self) -> Lines:
        """The asymptotic series, or digamma on [1, 2] and the recurrence's sum of 1 / (t + i)."""
        big = self.number(gamma.DIGAMMA_BIG)
        steps = [
            text
            for i in range(6)
            for text in (
                f"step = {{T}}(t + {{T}}({i}))",
                f"top = fma_{{T}}(top, step, bottom) if n > {{T}}({i}) else top",
                f"bottom = {{T}}(bottom * step) if n > {{T}}({i}) else bottom",
            )
        ]
        return [
            *self.lines(
                f"moderate = {big} if y >= {big} else y",
                "n = {T}(floor_{T}(moderate) - {T}(1))",
                "t = {T}(moderate - n)",
                "top = {T}(-1) if y < {T}(1) else {T}(0)",
                "bottom = y if y < {T}(1) else {T}(1)",
                *steps,
                "g = t",
                *(f"g = {{T}}(g - {self.number(part)})" for part in self.root()),
                "u = {T}(t - {T}(1))",
            ),
            *self.horner("above", "u", gamma.DIGAMMA_NUMERATOR),
            *self.horner("below", "u", gamma.DIGAMMA_DENOMINATOR),
            *self.lines(
                "ratio = {T}(above / below)",
                f"near = fma_{{T}}(g, {self.number(gamma.DIGAMMA_Y)}, {{T}}(g * ratio))",
                "near = {T}({T}(top / bottom) + near)",
                "inverse = {T}({T}(1) / y)",
                "z = {T}(inverse * inverse)",
            ),
            *self.horner("tail", "z", gamma.DIGAMMA_TAIL),
            *self.lines(
                "far = {T}({T}(log_{T}(y) - {T}(inverse * {T}(0.5))) - {T}(z * tail))",
                f"result = far if y >= {big} else near",
            ),
        ]

    def digamma_reflected(self) -> Lines:
        """digamma(1 - a) - pi / tan(pi a) for a < 0 (Abramowitz & Stegun 6.3.7)."""
        return [
            *self.lines("twice = fabs_{T}({T}(f + f))"),
            *self.horner("even", "square", gamma.DIGAMMA_COT),
            *self.lines(
                "even = {T}({T}({T}({T}(1) - twice) * {T}(twice + {T}(1))) * even)",
                "mirrored = {T}(result - {T}(even / f))",
                f"mirrored = {self.number(float('nan'))} if f == {{T}}(0) else mirrored",
                "return mirrored if a < {T}(0) else result",
            ),
        ]

    # -- lgamma -----------------------------------------------------------------------------------

    def lgamma_positive(self) -> Lines:
        """Stirling's series, or lgamma(2 + g) and the logarithm of what gamma's recurrence gives
        (`codegen/vector/gamma.py` has why)."""
        big, constant = self.number(gamma.LGAMMA_BIG), self.number(gamma.LGAMMA_CONSTANT)
        steps = [
            f"product = {{T}}(product * {{T}}(g + {{T}}({j}))) if n > {{T}}({j}) else product"
            for j in range(2, 7)
        ]
        return [
            *self.lines(
                f"moderate = {big} if y >= {big} else y",
                "n = floor_{T}({T}(moderate + {T}(0.5)))",
                "g = {T}(moderate - n)",
                "product = {T}(1)",
                *steps,
                "divisor = {T}(y * {T}(y + {T}(1))) if n < {T}(1) else y",
                "taken = divisor if n < {T}(2) else product",
                f"logarithm = log_{{T}}(y if y >= {big} else taken)",
                "signed = -logarithm if n < {T}(2) else logarithm",
            ),
            *self.horner("near", "g", gamma.LGAMMA),
            *self.lines(
                "near = fma_{T}(g, near, signed)",
                "inverse = {T}({T}(1) / y)",
                "z = {T}(inverse * inverse)",
            ),
            *self.horner("tail", "z", gamma.LGAMMA_TAIL),
            *self.lines(
                f"tail = {{T}}({{T}}(inverse * tail) + {constant})",
                "far = fma_{T}({T}(y - {T}(0.5)), {T}(logarithm - {T}(1)), tail)",
                f"result = far if y >= {big} else near",
            ),
        ]

    def lgamma_reflected(self) -> Lines:
        """log(pi / |sin(pi a)|) - lgamma(1 - a) for a < 0 (Abramowitz & Stegun 6.1.17)."""
        low, high = (self.number(float(text)) for text in ("-inf", "inf"))
        return [
            *self.horner("sine", "square", gamma.SINC),
            *self.lines(
                "sine = {T}(fabs_{T}(f) * sine)",
                "mirrored = {T}(-log_{T}(sine) - result)",
                f"mirrored = {high} if f == {{T}}(0) else mirrored",
                "result = mirrored if a < {T}(0) else result",
                f"return a if a == {low} else result",
            ),
        ]
