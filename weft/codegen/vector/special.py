"""Special functions as branch-free code that LLVM's loop vectoriser can widen: erf, erfc, erfinv,
lgamma and digamma.

Polynomials are minimax, fitted by Remez exchange in 45 to 50 digits (erf: against mpmath) and
rounded to the dtype, but for digamma's on [1, 2], which is Boost.Math's (J. Maddock, digamma.hpp).

* erf: for x >= 0, erfc(x) = e**(-x**2) w P(2w - 1), w = K / (K + x) in (0, 1] (M. Shepherd,
  J. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x**2) erfc x in 0 <= x < inf", 1981).
* erfinv: x times a function of w = -log(1 - x**2), by w near 0 and by its square root beyond, as in
  M. Giles, "Approximating the erfinv function" (GPU Computing Gems, 2011). f32 computes in f64.
* lgamma and digamma: both dtypes compute in f64."""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir

from weft.codegen.llvm.emitter import F32, F64
from weft.codegen.vector import avx512, exp_log
from weft.codegen.vector.exp_log import log, log_wide
from weft.codegen.vector.float_builder import FloatBuilder
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
    if m.dtype == "f32" and avx512.available():
        return avx512.erf(m, x)
    magnitude = m.abs(x)
    if m.dtype == "f32":
        t = m.at_most(magnitude, _ERF_ONE)
        rest = m.horner(t, _LOG_ERFC)
        log = m.fma(t, rest, t)
        lost = m.fma(t, rest, m.sub(t, log))
        scale, p = exp_log.decay_parts(m, log, lost)
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
    decay = exp_log.exp2_wide(wide, wide.mul(wide.mul(t, t), -exp_log.LOG2_E))
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
    decay = exp_log.exp(m, m.neg(square), m.neg(rest))
    return m.mul(decay, _scaled_erfc(m, x, table))


@dataclass(frozen=True)
class _Piece:
    """erfinv(x) / x from w = ``start`` on, in powers of w - centre, or sqrt(w) - centre."""

    start: float
    root: bool
    centre: float
    coefficients: tuple[float, ...]


# Relative errors 2**-28, 2**-26 and 2**-52, 2**-53, 2**-51.
_PIECES = {
    "f32": (
        _Piece(
            0.0,
            False,
            2.5,
            (
                *(1.501409353512672, 0.24664028766251317, -0.004177339390822203),
                *(-0.0012527447379065847, 0.00021828259200155862, -4.9618578149422246e-06),
                *(-3.4345846952517998e-06, 4.65878530576245e-07, 1.8030563832325634e-08),
                *(-8.771713414688142e-09, 3.360725444046519e-10),
            ),
        ),
        _Piece(
            5.0,
            True,
            3.125,
            (
                *(2.958320120519863, 1.00371857840662, 0.007049647783597754),
                *(-0.005298496403512428, 0.0037774078375465586, -0.002534254498456125),
                *(0.0013200213877200741, -0.00029831835893187706, -0.0001800607229840303),
                *(0.00011408110221588052,),
            ),
        ),
    ),
    "f64": (
        _Piece(
            0.0,
            False,
            3.125,
            (
                *(1.653654562683103, 0.2401581824255895, -0.006033670871430703),
                *(-0.0007407025341653456, 0.00018673420803637207, -1.3882523364793764e-05),
                *(-1.365469203835187e-06, 4.234787802850312e-07, -2.9070366851069373e-08),
                *(-4.112635082006959e-09, 1.0512107768606704e-09, -5.415375683131094e-11),
                *(-1.2974684957389754e-11, 2.6334340606401728e-12, -8.160542194813051e-14),
                *(-4.0535832354172485e-14, 6.6482390424290095e-15, 2.0185600378626846e-17),
                *(-1.341267386221679e-16, 1.1193148308122554e-17, 1.3207473135254563e-18),
                *(-1.6918307428306913e-19, -4.293449215364319e-21),
            ),
        ),
        _Piece(
            6.25,
            True,
            3.25,
            (
                *(3.0838856104922208, 1.0052589676941572, 0.005370914553583551),
                *(-0.003751208507372903, 0.0024914420965701407, -0.0016882755613298053),
                *(0.0009532893686749169, -0.0003550374567027327, 2.403123401869327e-05),
                *(6.828445011965842e-05, -4.7318972242992525e-05, 1.2476729189346077e-05),
                *(2.92599360346491e-06, -4.016730299157248e-06, 1.497753223741445e-06),
                *(2.127625669472917e-08, -2.699946514029787e-07, 8.943601430743337e-08),
            ),
        ),
        _Piece(
            16.0,
            True,
            5.0,
            (
                *(4.849906401408584, 1.0103004648645237, -0.00013871931843648534),
                *(-0.00021503011891414492, 7.59952792376559e-05, -1.9681782120572605e-05),
                *(4.526044479069169e-06, -9.929644522553858e-07, 2.290767804458129e-07),
                *(-6.77545354552754e-08, 2.8994302942606148e-08, -1.4907118439182686e-08),
                *(7.796217247240593e-09, -3.82295748189967e-09, 1.3977345853132936e-09),
                *(-2.470795589998374e-10,),
            ),
        ),
    ),
}


def erfinv(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """The y with erf(y) = x; infinite at -1 and 1, NaN beyond."""
    wide = FloatBuilder(m.builder, "f64")
    wide_x = x if m.dtype == "f64" else m.builder.fpext(x, F64)
    magnitude = wide.abs(wide_x)
    product = wide.mul(wide.sub(1.0, magnitude), wide.add(magnitude, 1.0))
    w = wide.neg(log(wide, product) if m.dtype == "f64" else log_wide(wide, product))
    result = wide.mul(magnitude, _ratio(wide, w, _PIECES[m.dtype]))
    result = wide.select(wide.compare("==", magnitude, 1.0), math.inf, result)
    result = wide.select(wide.compare(">", magnitude, 1.0), math.nan, result)
    result = result if m.dtype == "f64" else m.builder.fptrunc(result, F32)
    return m.copysign(result, x)


def _ratio(m: FloatBuilder, w: ir.Value, pieces: tuple[_Piece, ...]) -> ir.Value:
    """One polynomial whose coefficients are selected by piece: a gather costs more."""
    root = m.call("sqrt", w)
    reached = [m.compare(">=", w, piece.start) for piece in pieces[1:]]

    def pick(values: list[ir.Value | float]) -> ir.Value | float:
        result = values[0]
        for condition, value in zip(reached, values[1:], strict=True):
            result = m.select(condition, value, result)
        return result

    t = m.sub(
        pick([root if piece.root else w for piece in pieces]), pick([p.centre for p in pieces])
    )
    degree = max(len(piece.coefficients) for piece in pieces)
    padded = [piece.coefficients + (0.0,) * (degree - len(piece.coefficients)) for piece in pieces]
    columns = [pick(list(column)) for column in zip(*padded, strict=True)]
    result = columns[-1]
    for coefficient in reversed(columns[:-1]):
        result = m.fma(result, t, coefficient)
    assert isinstance(result, ir.Value)
    return result


# lgamma(2 + f) / f on |f| <= 1/2, 2**-59.
LGAMMA = (
    *(0.42278433509846713, 0.32246703342411326, -0.06735230105319831, 0.02058080842778057),
    *(-0.007385551028649712, 0.002890510331023567, -0.0011927539127581969),
    *(0.000509669515680181, -0.0002231547351712936, 9.945766998072185e-05),
    *(-4.492653105160591e-05, 2.0505617786172063e-05, -9.437237338929991e-06),
    *(4.384588073546445e-06, -2.0497517025832743e-06, 9.203184720747703e-07),
    *(-4.20049020593531e-07, 2.784909326295533e-07, -1.43289500367756e-07),
)
LGAMMA_BIG = 7.5
LGAMMA_CONSTANT = (math.log(2 * math.pi) - 1) / 2
# x (lgamma(x) - (x - 1/2) log(x) + x - log(2 pi) / 2) in 1 / x**2 for x >= LGAMMA_BIG, 2**-59.
LGAMMA_TAIL = (
    *(0.08333333333333333, -0.0027777777777701265, 0.0007936507866641164),
    *(-0.0005952356956620452, 0.0008413558520079816, -0.0018836802177886428),
    0.004919524584207212,
)
# sin(pi f) / (pi f) in f**2 on |f| <= 1/2, 2**-61.
SINC = (
    *(1.0, -1.6449340668482262, 0.8117424252833373, -0.19075182412143052, 0.0261478478045301),
    *(-0.0023460808868284565, 0.0001484278008976165, -6.9720005476143215e-06),
    2.449308676051309e-07,
)
# pi f cot(pi f) / (1 - 4 f**2) in f**2 on |f| <= 1/2, 2**-56.
DIGAMMA_COT = (
    *(1.0, 0.7101318663035299, 0.6758809977970318, 0.6688378666006403, 0.6671967929054782),
    *(0.6667965373180094, 0.6667312224099071, 0.6661558960963087, 0.6725982554102217),
    *(0.6184224755966475, 0.9462702720734034, -0.47053257169605545, 3.7935661957779825),
    *(-4.695739964635667, 5.351729285447418),
)
# digamma(x) = (x - root) (Y + N(x - 1) / D(x - 1)) on [1, 2]; the root as a sum.
DIGAMMA_ROOT = (
    1569415565.0 / 1073741824.0,
    381566830.0 / 1073741824.0 / 1073741824.0,
    0.9016312093258695918615325266959189453125e-19,
)
DIGAMMA_Y = 0.99558162689208984
DIGAMMA_NUMERATOR = (
    *(0.25479851061131551, -0.32555031186804491, -0.65031853770896507, -0.28919126444774784),
    *(-0.045251321448739056, -0.0020713321167745952),
)
DIGAMMA_DENOMINATOR = (
    *(1.0, 2.0767117023730469, 1.4606242909763515, 0.43593529692665969),
    *(0.054151797245674225, 0.0021284987017821144, -0.55789841213675513e-6),
)
DIGAMMA_BIG = 8.0
# x**2 (log(x) - 1 / (2 x) - digamma(x)) in 1 / x**2 for x >= DIGAMMA_BIG, 2**-56.
DIGAMMA_TAIL = (
    *(0.08333333333333333, -0.008333333333280426, 0.003968253913284352, -0.004166645185461214),
    *(0.007571734264176772, -0.02070052312380927, 0.06367553207597923),
)


_Function = Callable[[FloatBuilder, ir.Value], ir.Value]


def lgamma(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """log |gamma(x)|; inf at the poles, -inf at -inf."""
    return _in_f64(m, x, _lgamma)


def digamma(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Logarithmic derivative of gamma; NaN at negative integers and at -inf, infinite at 0."""
    return _in_f64(m, x, _digamma)


def _in_f64(m: FloatBuilder, x: ir.Value, function: _Function) -> ir.Value:
    if m.dtype == "f64":
        return function(m, x)
    wide = FloatBuilder(m.builder, "f64")
    return m.builder.fptrunc(function(wide, m.builder.fpext(x, F64)), F32)


def _reflected(m: FloatBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(x < 0, 1 - x there and x elsewhere, x less the nearest integer)."""
    negative = m.compare("<", x, 0.0)
    return negative, m.select(negative, m.sub(1.0, x), x), m.sub(x, m.call("roundeven", x))


def _lgamma(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """log(pi / |sin(pi x)|) - lgamma(1 - x) for x < 0 (Abramowitz & Stegun 6.1.17)."""
    negative, y, f = _reflected(m, x)
    result = _lgamma_positive(m, y)
    sine = m.mul(m.abs(f), m.horner(m.mul(f, f), SINC))  # by pi
    reflected = m.sub(m.neg(log(m, sine)), result)
    reflected = m.select(m.compare("==", f, 0.0), math.inf, reflected)
    result = m.select(negative, reflected, result)
    return m.select(m.compare("==", x, -math.inf), x, result)  # as SciPy; C has +inf


def _lgamma_positive(m: FloatBuilder, y: ir.Value) -> ir.Value:
    """Stirling's series, or lgamma(2 + f) and the logarithm of what gamma's recurrence gives.

    y = n + f with |f| <= 1/2: gamma(y) is gamma(2 + f) times (2 + f) ... (n - 1 + f), or divided by
    y (n = 1) or y (y + 1) (n = 0); so lgamma's zeros at 1 and 2 keep their relative accuracy.
    """
    big = m.compare(">=", y, LGAMMA_BIG)
    moderate = m.at_most(y, LGAMMA_BIG)
    n = m.call("floor", m.add(moderate, 0.5))
    f = m.sub(moderate, n)
    product: ir.Value = m.const(1.0)
    for j in range(2, 7):
        product = m.select(m.compare(">", n, float(j)), m.mul(product, m.add(f, float(j))), product)
    low = m.compare("<", n, 2.0)
    divisor = m.select(m.compare("<", n, 1.0), m.mul(y, m.add(y, 1.0)), y)
    logarithm = log(m, m.select(big, y, m.select(low, divisor, product)))
    near = m.fma(f, m.horner(f, LGAMMA), m.select(low, m.neg(logarithm), logarithm))
    inverse = m.div(1.0, y)
    tail = m.mul(inverse, m.horner(m.mul(inverse, inverse), LGAMMA_TAIL))
    far = m.fma(m.sub(y, 0.5), m.sub(logarithm, 1.0), m.add(tail, LGAMMA_CONSTANT))
    return m.select(big, far, near)


def _digamma(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """digamma(1 - x) - pi / tan(pi x) for x < 0 (Abramowitz & Stegun 6.3.7)."""
    negative, y, f = _reflected(m, x)
    result = _digamma_positive(m, y)
    twice = m.abs(m.add(f, f))
    even = m.mul(m.mul(m.sub(1.0, twice), m.add(twice, 1.0)), m.horner(m.mul(f, f), DIGAMMA_COT))
    reflected = m.sub(result, m.div(even, f))
    reflected = m.select(m.compare("==", f, 0.0), math.nan, reflected)
    return m.select(negative, reflected, result)


def _digamma_positive(m: FloatBuilder, y: ir.Value) -> ir.Value:
    """The asymptotic series, or digamma on [1, 2] and the recurrence's sum of 1 / (t + i)."""
    big = m.compare(">=", y, DIGAMMA_BIG)
    moderate = m.at_most(y, DIGAMMA_BIG)
    n = m.sub(m.call("floor", moderate), 1.0)
    t = m.sub(moderate, n)
    below = m.compare("<", y, 1.0)  # one step down: - 1 / y
    top, bottom = m.select(below, -1.0, 0.0), m.select(below, y, 1.0)
    for i in range(6):
        step, more = m.add(t, float(i)), m.compare(">", n, float(i))
        top = m.select(more, m.fma(top, step, bottom), top)
        bottom = m.select(more, m.mul(bottom, step), bottom)
    g = t
    for part in DIGAMMA_ROOT:
        g = m.sub(g, part)
    u = m.sub(t, 1.0)
    ratio = m.div(m.horner(u, DIGAMMA_NUMERATOR), m.horner(u, DIGAMMA_DENOMINATOR))
    near = m.add(m.div(top, bottom), m.fma(g, DIGAMMA_Y, m.mul(g, ratio)))
    inverse = m.div(1.0, y)
    z = m.mul(inverse, inverse)
    far = m.sub(m.sub(log(m, y), m.mul(inverse, 0.5)), m.mul(z, m.horner(z, DIGAMMA_TAIL)))
    return m.select(big, far, near)
