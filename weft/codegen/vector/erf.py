"""erf and erfc as branch-free polynomials that LLVM's loop vectoriser can widen.

All polynomials are minimax, fitted by Remez exchange in 50 digits against mpmath and rounded to the
dtype.  For x >= 0, erfc(x) = e**(-x**2) w P(2w - 1), w = K / (K + x) in (0, 1] (M. Shepherd,
J. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x**2) erfc x in 0 <= x < inf", 1981).
"""

from __future__ import annotations

from llvmlite import ir

from weft.codegen.elements import F32, F64
from weft.codegen.scalar.float_builder import FloatBuilder
from weft.codegen.vector import exp as vector_exp
from weft.codegen.vector import lanes, tables
from weft.ir.dataclass import dataclass


@dataclass(frozen=True)
class _Table:
    """``erf_small``: erf(x)/x - 1 in x**2 on |x| < erf_limit; ``erfc``: P."""

    erf_small: tuple[float, ...]
    erf_limit: float
    k: float
    erfc: tuple[float, ...]
    erfc_zero: float  # erfc of more is 0


# By the dtype of the result; f32 computes erfc in f64, with relative errors 2**-36 and 2**-31.
_TABLES = {
    "f32": _Table(
        erf_small=(
            *(0.12837916708308142, -0.37612638723394826, 0.11283787371010603),
            *(-0.026865776170583826, 0.00522218773313373, -0.0008503807991972584),
            *(0.00011432049636971903, -1.021412894066952e-05),
        ),
        erf_limit=0.925,
        k=3.0,
        erfc=(
            *(0.35800230246140585, 0.29446481607820396, 0.19674276715650835),
            *(0.10348917306194617, 0.03984313301320668, 0.008941187344294834),
            *(-0.0004097182095731925, -0.00100454916021139, -0.00015938284445440325),
            7.717165607848423e-05,
        ),
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
        erfc_zero=27.5,
    ),
}

# -log(erfc(x)) / x - 1 on [0, 3.95], weighted by what is left of it in erf; beyond, erf rounds to 1
# in f32.
_LOG_ERFC = (
    *(0.12837917, 0.6366194, 0.10277783, -0.019153066, -0.00016038974),
    *(0.0016670198, -0.0006328321, 0.00011763978, -9.256085e-06),
)
_ERF_ONE = 3.95


def erf(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Error function."""
    if m.dtype == "f32" and lanes.available():
        return tables.erf(m, x)
    magnitude = m.abs(x)
    if m.dtype == "f32":
        t = m.at_most(magnitude, _ERF_ONE)
        rest = m.horner(t, _LOG_ERFC)
        log = m.fma(t, rest, t)
        lost = m.fma(t, rest, m.sub(t, log))
        scale, p = vector_exp.decay_parts(m, log, lost)
        return m.copysign(m.fma(scale, p, m.sub(scale, 1.0)), x)
    small = _erf_small(m, x, _TABLES["f64"])
    large = m.copysign(m.sub(1.0, _erfc_f64(m, magnitude)), x)
    return m.select(m.compare("<", magnitude, _TABLES["f64"].erf_limit), small, large)


def erfc(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Complementary error function, relatively accurate into its denormal tail."""
    if m.dtype == "f64":
        return _erfc(m, x, _erfc_f64(m, m.abs(x)), _TABLES["f64"])
    wide = FloatBuilder(m.builder, "f64")
    wide_x = m.builder.fpext(x, F64)
    table = _TABLES["f32"]
    t = wide.at_most(wide.abs(wide_x), table.erfc_zero)
    decay = vector_exp.exp2_wide(wide, wide.mul(wide.mul(t, t), -vector_exp.LOG2_E))
    positive = wide.mul(decay, _scaled_erfc(wide, t, table))
    return m.builder.fptrunc(_erfc(wide, wide_x, positive, table), F32)


def _erfc(m: FloatBuilder, x: ir.Value, positive: ir.Value, table: _Table) -> ir.Value:
    """erfc(x) by ``positive`` = erfc(|x|) or, near 0, by erf."""
    large = m.select(m.compare("<", x, 0.0), m.sub(2.0, positive), positive)
    is_small = m.compare("<", m.abs(x), table.erf_limit)
    return m.select(is_small, m.sub(1.0, _erf_small(m, x, table)), large)


def _erf_small(m: FloatBuilder, x: ir.Value, table: _Table) -> ir.Value:
    return m.fma(x, m.horner(m.mul(x, x), table.erf_small), x)


def _scaled_erfc(m: FloatBuilder, x: ir.Value, table: _Table) -> ir.Value:
    """e**(x**2) erfc(x)"""
    reciprocal = m.div(1.0, m.add(x, table.k))
    u = m.mul(m.sub(table.k, x), reciprocal)
    return m.mul(m.mul(reciprocal, table.k), m.horner(u, table.erfc))


def _erfc_f64(m: FloatBuilder, x: ir.Value) -> ir.Value:
    table = _TABLES["f64"]
    x = m.at_most(x, table.erfc_zero)
    # x**2 as a sum: the rounding error of the square alone would be amplified.
    square, rest = m.two_product(x, x)
    decay = vector_exp.exp(m, m.neg(square), m.neg(rest))
    return m.mul(decay, _scaled_erfc(m, x, table))
