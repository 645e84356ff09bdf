"""The inverse error function as branch-free code that LLVM's loop vectoriser can widen.

x times a function of w = -log(1 - x**2), by w near 0 and by its square root beyond, as in M. Giles,
"Approximating the erfinv function" (GPU Computing Gems, 2011); polynomials are minimax, by Remez
exchange in 45 digits.  f32 computes in f64.
"""

from __future__ import annotations

import math

from llvmlite import ir

from weft.codegen.elements import F32, F64
from weft.codegen.scalar.float_builder import FloatBuilder
from weft.codegen.vector.log import log, log_wide
from weft.ir.dataclass import dataclass


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
