"""erf and erfc as branch-free polynomials that LLVM's loop vectoriser can widen.

All polynomials are minimax, fitted by Remez exchange in 50 digits against mpmath and rounded to the
dtype.  For x >= 0, erfc(x) = e**(-x**2) w P(2w - 1), w = K / (K + x) in (0, 1] (M. Shepherd,
J. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x**2) erfc x in 0 <= x < inf", 1981).
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from weft.codegen import vector_exp
from weft.codegen.float_builder import FloatBuilder


@dataclass(frozen=True)
class _Table:
    """``erf_small``: erf(x)/x - 1 in x**2 on |x| < erf_limit; ``erfc``: P."""

    erf_small: tuple[float, ...]
    erf_limit: float
    k: float
    erfc: tuple[float, ...]
    split_bits: int  # low mantissa bits cleared to make squares exact
    erfc_zero: float  # erfc of more is 0


_TABLES = {
    "f32": _Table(
        erf_small=(
            *(0.128379166, -0.376126319, 0.112836875, -0.0268589426, 0.00519990828),
            *(-0.000813001883, 8.3167688e-05),
        ),
        erf_limit=0.925,
        k=3.0,
        erfc=(
            *(0.358002305, 0.294464827, 0.196742758, 0.103488654, 0.0398430564, 0.00894668698),
            *(-0.00040901528, -0.00102685939, -0.000160664902, 0.000108239838),
        ),
        split_bits=12,
        erfc_zero=10.3,
    ),
    "f64": _Table(
        erf_small=(
            *(0.1283791670955126, -0.3761263890318375, 0.11283791670954858),
            *(-0.02686617064507296, 0.00522397762478137, -0.0008548326978765149),
            *(0.00012055331037551108, -1.4925593518728226e-05, 1.6460972954153765e-06),
            *(-1.635002619207727e-07, 1.4657883530919653e-08, -1.136567067182716e-09),
            5.945255584223488e-11,
        ),
        erf_limit=1.0,
        k=4.0,
        erfc=(
            *(0.27399891525012277, 0.2441371822702205, 0.19330217556630933, 0.13521345782830874),
            *(0.08271289696949896, 0.04350273430998259, 0.0190953787274542),
            *(0.0065925133351218725, 0.0015280139119797844, 7.023971590983684e-05),
            *(-0.00011376315419080371, -4.420320249191056e-05, -9.088821133604102e-07),
            *(4.7152203690621424e-06, 1.1739089565001907e-06, -3.5607484547126445e-07),
            *(-2.1223050703114072e-07, 1.9000020541437927e-08, 3.199833712500006e-08),
            *(-4.5315776819282683e-10, -4.644452876749373e-09, 2.0858499894140487e-10),
            *(5.240113325793855e-10, -1.034289286568854e-10),
        ),
        split_bits=27,
        erfc_zero=27.5,
    ),
}

# -log(erfc(x)) / x on [0.9, 4.1]; beyond, erf rounds to 1 in f32.
_LOG_ERFC = (
    *(1.12863708, 0.635198057, 0.106158994, -0.0236945152, 0.0036103162),
    *(-0.000314851408, 1.04324035e-05),
)
_ERF_ONE = 4.1


def erf(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Error function."""
    magnitude = m.abs(x)
    if m.dtype == "f32":
        t = m.at_most(magnitude, _ERF_ONE)
        complement = vector_exp.exp(m, m.neg(m.mul(t, m.horner(t, _LOG_ERFC))))
    else:
        complement = _erfc_positive(m, magnitude)
    large = m.copysign(m.sub(1.0, complement), x)
    return m.select(_is_small(m, magnitude), _erf_small(m, x), large)


def erfc(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Complementary error function, relatively accurate into its denormal tail."""
    magnitude = m.abs(x)
    positive = _erfc_positive(m, magnitude)
    large = m.select(m.compare("<", x, 0.0), m.sub(2.0, positive), positive)
    return m.select(_is_small(m, magnitude), m.sub(1.0, _erf_small(m, x)), large)


def _is_small(m: FloatBuilder, magnitude: ir.Value) -> ir.Value:
    return m.compare("<", magnitude, _TABLES[m.dtype].erf_limit)


def _erf_small(m: FloatBuilder, x: ir.Value) -> ir.Value:
    return m.fma(x, m.horner(m.mul(x, x), _TABLES[m.dtype].erf_small), x)


def _erfc_positive(m: FloatBuilder, x: ir.Value) -> ir.Value:
    table = _TABLES[m.dtype]
    x = m.at_most(x, table.erfc_zero)
    reciprocal = m.div(1.0, m.add(x, table.k))
    u = m.mul(m.sub(table.k, x), reciprocal)
    scaled = m.mul(m.mul(reciprocal, table.k), m.horner(u, table.erfc))
    # x**2 = head**2 + (x - head)(x + head), the first exact: its rounding error would be amplified.
    head = m.clear_low_bits(x, table.split_bits)
    square = m.mul(head, head)
    rest = m.mul(m.sub(head, x), m.add(head, x))
    return m.mul(vector_exp.exp(m, m.neg(square), rest), scaled)
