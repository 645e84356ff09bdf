"""digamma as a device function: libdevice has none. Both dtypes compute in f64, as on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.cuda.scalars.memory import literal
from weft.codegen.vector.gamma import (
    DIGAMMA_BIG,
    DIGAMMA_COT,
    DIGAMMA_DENOMINATOR,
    DIGAMMA_NUMERATOR,
    DIGAMMA_ROOT,
    DIGAMMA_TAIL,
    DIGAMMA_Y,
)


def digamma(dtype: str) -> str:
    """The definition of `wf_digamma_f32` or `wf_digamma_f64`."""
    if dtype == "f32":
        return "def wf_digamma_f32(a):\n    return f32(wf_digamma_f64(f64(a)))\n"
    return "\n".join(["def wf_digamma_f64(a):", *_reduced(), *_positive(), *_reflected(), ""])


def _number(value: float) -> str:
    return literal("f64", value)


def _horner(name: str, x: str, coefficients: Sequence[float]) -> list[str]:
    """Lines that leave the polynomial in `x`, constant first, in `name`."""
    *rest, last = coefficients
    lines = [f"    {name} = {_number(last)}"]
    return lines + [f"    {name} = fma_f64({name}, {x}, {_number(c)})" for c in reversed(rest)]


def _reduced() -> list[str]:
    """y > 0: a, or 1 - a where a < 0; f: a less the nearest integer."""
    return [
        "    y = f64(f64(1) - a) if a < f64(0) else a",
        "    f = f64(a - rint_f64(a))",
    ]


def _positive() -> list[str]:
    """The asymptotic series, or digamma on [1, 2] and the recurrence's sum of 1 / (t + i)."""
    big = _number(DIGAMMA_BIG)
    lines = [
        f"    moderate = {big} if y >= {big} else y",
        "    n = f64(floor_f64(moderate) - f64(1))",
        "    t = f64(moderate - n)",
        "    top = f64(-1) if y < f64(1) else f64(0)",
        "    bottom = y if y < f64(1) else f64(1)",
    ]
    for i in range(6):
        lines += [
            f"    step = f64(t + f64({i}))",
            f"    top = fma_f64(top, step, bottom) if n > f64({i}) else top",
            f"    bottom = f64(bottom * step) if n > f64({i}) else bottom",
        ]
    lines += ["    g = t", *(f"    g = f64(g - {_number(part)})" for part in DIGAMMA_ROOT)]
    lines += ["    u = f64(t - f64(1))"]
    lines += _horner("above", "u", DIGAMMA_NUMERATOR) + _horner("below", "u", DIGAMMA_DENOMINATOR)
    lines += [
        f"    near = fma_f64(g, {_number(DIGAMMA_Y)}, f64(g * f64(above / below)))",
        "    near = f64(f64(top / bottom) + near)",
        "    inverse = f64(f64(1) / y)",
        "    z = f64(inverse * inverse)",
        *_horner("tail", "z", DIGAMMA_TAIL),
        "    far = f64(f64(log_f64(y) - f64(inverse * f64(0.5))) - f64(z * tail))",
        f"    result = far if y >= {big} else near",
    ]
    return lines


def _reflected() -> list[str]:
    """digamma(1 - a) - pi / tan(pi a) for a < 0 (Abramowitz & Stegun 6.3.7)."""
    return [
        "    twice = fabs_f64(f64(f + f))",
        "    square = f64(f * f)",
        *_horner("even", "square", DIGAMMA_COT),
        "    even = f64(f64(f64(f64(1) - twice) * f64(twice + f64(1))) * even)",
        "    mirrored = f64(result - f64(even / f))",
        f"    mirrored = {_number(float('nan'))} if f == f64(0) else mirrored",
        "    return mirrored if a < f64(0) else result",
    ]
