"""Special cases of elementwise functions: what the Python array API standard (2025.12) says of NaN,
infinities, zeros with their signs and the ends of domains, eagerly, with many elements and
compiled, for each floating and complex dtype.

A row is `conditions: result`; of several that fit, the first holds. A condition: a number; `inf`
and `0` of either sign; `any`, `finite`, `nonzero`, `pos` and `neg` (finite ones), `whole`,
`fraction`, `odd`, `notodd`, `notnan`; `>1`, `abs<1`; `p&q`, `p|q`; `-x1`. `nan or`: NaN in either.
A result: an expression of the operands x, x1, x2 or of the parts a, b; `p or q` where the standard
leaves a choice. Of complex numbers both parts: `~` for a sign that is not said, `k*cis` for
k (cos b + i sin b). A zero without a sign has any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf

REAL: dict[str, str] = {
    "abs": "nan: nan; -0: +0; -inf: +inf",
    "acos": "nan: nan; >1: nan; <-1: nan; 1: +0",
    "acosh": "nan: nan; <1: nan; 1: +0; +inf: +inf",
    "asin": "nan: nan; >1: nan; <-1: nan; +0: +0; -0: -0",
    "asinh": "nan: nan; +0: +0; -0: -0; +inf: +inf; -inf: -inf",
    "atan": "nan: nan; +0: +0; -0: -0; +inf: +pi/2; -inf: -pi/2",
    "atanh": "nan: nan; <-1: nan; >1: nan; -1: -inf; +1: +inf; +0: +0; -0: -0",
    "ceil": "whole: x; +inf: +inf; -inf: -inf; +0: +0; -0: -0; nan: nan",
    "cos": "nan: nan; +0: 1; -0: 1; +inf: nan; -inf: nan",
    "cosh": "nan: nan; +0: 1; -0: 1; +inf: +inf; -inf: +inf",
    "exp": "nan: nan; +0: 1; -0: 1; +inf: +inf; -inf: +0",
    "expm1": "nan: nan; +0: +0; -0: -0; +inf: +inf; -inf: -1",
    "floor": "whole: x; +inf: +inf; -inf: -inf; +0: +0; -0: -0; nan: nan",
    "isfinite": "inf: False; nan: False; finite: True",
    "isinf": "inf: True",
    "isnan": "nan: True",
    "log": "nan: nan; <0: nan; 0: -inf; 1: +0; +inf: +inf",
    "log10": "nan: nan; <0: nan; 0: -inf; 1: +0; +inf: +inf",
    "log1p": "nan: nan; <-1: nan; -1: -inf; -0: -0; +0: +0; +inf: +inf",
    "log2": "nan: nan; <0: nan; 0: -inf; 1: +0; +inf: +inf",
    "round": "whole: x; +inf: +inf; -inf: -inf; +0: +0; -0: -0; nan: nan",
    "sign": "<0: -1; 0: 0; >0: +1; nan: nan",
    "sin": "nan: nan; +0: +0; -0: -0; inf: nan",
    "sinh": "nan: nan; +0: +0; -0: -0; +inf: +inf; -inf: -inf",
    "sqrt": "nan: nan; <0: nan; +0: +0; -0: -0; +inf: +inf",
    "tan": "nan: nan; +0: +0; -0: -0; inf: nan",
    "tanh": "nan: nan; +0: +0; -0: -0; +inf: +1; -inf: -1",
    "trunc": "whole: x; +inf: +inf; -inf: -inf; +0: +0; -0: -0; nan: nan",
}
PAIRS: dict[str, str] = {
    "add": """
        nan any: nan; any nan: nan; +inf -inf: nan; -inf +inf: nan; +inf +inf: +inf;
        -inf -inf: -inf; +inf finite: +inf; -inf finite: -inf; finite +inf: +inf;
        finite -inf: -inf; -0 -0: -0; -0 +0: +0; +0 -0: +0; +0 +0: +0; 0 nonzero: x2;
        nonzero 0: x1; nonzero -x1: +0
    """,
    "atan2": """
        nan any: nan; any nan: nan; >0 +0: +pi/2; >0 -0: +pi/2; +0 >0: +0; +0 +0: +0;
        +0 -0: +pi; +0 <0: +pi; -0 >0: -0; -0 +0: -0; -0 -0: -pi; -0 <0: -pi; <0 +0: -pi/2;
        <0 -0: -pi/2; pos +inf: +0; pos -inf: +pi; neg +inf: -0; neg -inf: -pi;
        +inf finite: +pi/2; -inf finite: -pi/2; +inf +inf: +pi/4; +inf -inf: +3*pi/4;
        -inf +inf: -pi/4; -inf -inf: -3*pi/4
    """,
    "copysign": """
        any <0: -abs(x1); any -0: -abs(x1); any +0: abs(x1); any >0: abs(x1); nan <0: nan;
        nan -0: nan; nan +0: nan; nan >0: nan
    """,
    "divide": """
        nan any: nan; any nan: nan; inf inf: nan; 0 0: nan; +0 >0: +0; -0 >0: -0; +0 <0: -0;
        -0 <0: +0; >0 +0: +inf; >0 -0: -inf; <0 +0: -inf; <0 -0: +inf; +inf pos: +inf;
        +inf neg: -inf; -inf pos: -inf; -inf neg: +inf; pos +inf: +0; pos -inf: -0;
        neg +inf: -0; neg -inf: +0
    """,
    "equal": """
        nan any: False; any nan: False; +inf +inf: True; -inf -inf: True; -0 0: True;
        +0 0: True
    """,
    "floor_divide": """
        nan any: nan; any nan: nan; inf inf: nan; 0 0: nan; +0 >0: +0; -0 >0: -0; +0 <0: -0;
        -0 <0: +0; >0 +0: +inf; >0 -0: -inf; <0 +0: -inf; <0 -0: +inf; +inf pos: +inf or nan;
        +inf neg: -inf or nan; -inf pos: -inf or nan; -inf neg: +inf or nan; pos +inf: +0;
        pos -inf: -0 or -1; neg +inf: -0 or -1; neg -inf: +0
    """,
    "hypot": """
        inf any: +inf; any inf: +inf; 0 any: abs(x2); any 0: abs(x1); finite|nan nan: nan;
        nan finite|nan: nan
    """,
    "logaddexp": "nan any: nan; any nan: nan; +inf notnan: +inf; notnan +inf: +inf",
    "maximum": "nan any: nan; any nan: nan",
    "minimum": "nan any: nan; any nan: nan",
    "multiply": "nan any: nan; any nan: nan; inf 0: nan; 0 inf: nan",
    "nextafter": "nan any: nan; any nan: nan; -0 +0: +0; +0 -0: -0",
    "not_equal": "nan any: True; any nan: True; +inf -inf: True; -inf +inf: True",
    "pow": """
        !=1 nan: nan; any +0: 1; any -0: 1; nan !=0: nan; abs>1 +inf: +inf; abs>1 -inf: +0;
        abs=1 +inf: 1; abs=1 -inf: 1; 1 notnan: 1; abs<1 +inf: +0; abs<1 -inf: +inf;
        +inf >0: +inf; +inf <0: +0; -inf >0&odd: -inf; -inf >0&notodd: +inf; -inf <0&odd: -0;
        -inf <0&notodd: +0; +0 >0: +0; +0 <0: +inf; -0 >0&odd: -0; -0 >0&notodd: +0;
        -0 <0&odd: -inf; -0 <0&notodd: +inf; neg fraction: nan
    """,
    "remainder": """
        nan any: nan; any nan: nan; inf inf: nan; 0 0: nan; +0 >0: +0; -0 >0: +0; +0 <0: -0;
        -0 <0: -0; >0 +0: nan; >0 -0: nan; <0 +0: nan; <0 -0: nan; +inf pos: nan; +inf neg: nan;
        -inf pos: nan; -inf neg: nan; pos +inf: x1; pos -inf: x2; neg +inf: x2; neg -inf: x1
    """,
}
#: Of sqrt as C99 (G.6.4.2), NumPy and the standard of 2025.12 say: that of 2024.12 gives NaN for
#: -inf + 1i, and +0 + inf i for inf + 1i, against its rule that branches are those of C99. The sign
#: of the 0 in tanh(inf + bi) is that of sin(2b), in C99.
COMPLEX: dict[str, str] = {
    "abs": """
        inf any: +inf; any inf: +inf; 0 any: abs(b); any 0: abs(a); nan finite: nan;
        finite nan: nan; nan nan: nan
    """,
    "acos": """
        0 +0: pi/2, -0; 0 nan: pi/2, nan; finite +inf: pi/2, -inf; nonzero nan: nan, nan;
        -inf pos: pi, -inf; +inf pos: +0, -inf; -inf +inf: 3*pi/4, -inf; +inf +inf: pi/4, -inf;
        inf nan: nan, ~inf; nan finite: nan, nan; nan +inf: nan, -inf; nan nan: nan, nan
    """,
    "acosh": """
        0 +0: +0, pi/2; finite +inf: +inf, pi/2; nonzero nan: nan, nan; +0 nan: nan, ~pi/2;
        -inf pos: +inf, pi; +inf pos: +inf, 0; -inf +inf: +inf, 3*pi/4; +inf +inf: +inf, pi/4;
        inf nan: +inf, nan; nan finite: nan, nan; nan +inf: +inf, nan; nan nan: nan, nan
    """,
    "asinh": """
        +0 +0: +0, 0; pos +inf: +inf, pi/2; finite nan: nan, nan; +inf pos: +inf, 0;
        +inf +inf: +inf, pi/4; nan +0: nan, 0; nan nonzero: nan, nan; nan +inf: ~inf, nan;
        nan nan: nan, nan
    """,
    "atanh": """
        +0 +0: +0, 0; +0 nan: +0, nan; 1 +0: +inf, 0; pos +inf: +0, pi/2; nonzero nan: nan, nan;
        +inf pos: +0, pi/2; +inf +inf: +0, pi/2; +inf nan: +0, nan; nan finite: nan, nan;
        nan +inf: ~0, pi/2; nan nan: nan, nan
    """,
    "cosh": """
        +0 +0: 1, 0; +0 +inf: nan, ~0; +0 nan: nan, ~0; nonzero +inf: nan, nan;
        nonzero nan: nan, nan; +inf +0: +inf, 0; +inf nonzero: +inf*cis; +inf +inf: ~+inf, nan;
        +inf nan: +inf, nan; nan 0: nan, ~0; nan nonzero: nan, nan; nan nan: nan, nan
    """,
    "exp": """
        0 +0: 1, 0; finite +inf: nan, nan; finite nan: nan, nan; +inf +0: inf, 0;
        -inf finite: +0*cis; +inf nonzero: +inf*cis; -inf +inf: ~0, ~0; +inf +inf: ~inf, nan;
        -inf nan: ~0, ~0; +inf nan: ~inf, nan; nan +0: nan, 0; nan !=0: nan, nan;
        nan nan: nan, nan
    """,
    "expm1": """
        0 +0: 0, 0; finite +inf: nan, nan; finite nan: nan, nan; +inf +0: +inf, 0;
        -inf finite: +0*cis-1; +inf nonzero: +inf*cis-1; -inf +inf: -1, ~0;
        +inf +inf: ~inf, nan; -inf nan: -1, ~0; +inf nan: ~inf, nan; nan +0: nan, 0;
        nan !=0: nan, nan; nan nan: nan, nan
    """,
    "isfinite": "nan or: False; inf any: False; any inf: False; finite finite: True",
    "isinf": "inf any: True; finite|nan inf: True",
    "isnan": "nan or: True",
    "log": """
        -0 +0: -inf, pi; +0 +0: -inf, 0; finite +inf: +inf, pi/2; finite nan: nan, nan;
        -inf pos: +inf, pi; +inf pos: +inf, 0; -inf +inf: +inf, 3*pi/4; +inf +inf: +inf, pi/4;
        inf nan: +inf, nan; nan finite: nan, nan; nan +inf: +inf, nan; nan nan: nan, nan
    """,
    "log1p": """
        -1 +0: -inf, 0; finite +inf: +inf, pi/2; finite nan: nan, nan; -inf pos: +inf, pi;
        +inf pos: +inf, 0; -inf +inf: +inf, 3*pi/4; +inf +inf: +inf, pi/4; inf nan: +inf, nan;
        nan finite: nan, nan; nan +inf: +inf, nan; nan nan: nan, nan
    """,
    "sign": "0 0: 0, 0; nan or: nan, nan",
    "sinh": """
        +0 +0: +0, 0; +0 +inf: ~0, nan; +0 nan: ~0, nan; pos +inf: nan, nan; pos nan: nan, nan;
        +inf +0: +inf, 0; +inf pos: +inf*cis; +inf +inf: ~inf, nan; +inf nan: ~inf, nan;
        nan +0: nan, 0; nan nonzero: nan, nan; nan nan: nan, nan
    """,
    "sqrt": """
        0 +0: +0, 0; any +inf: +inf, inf; any -inf: +inf, -inf; finite nan: nan, nan;
        -inf pos: +0, inf; +inf pos: +inf, 0; -inf nan: nan, ~inf; +inf nan: +inf, nan;
        nan any: nan, nan
    """,
    "tanh": """
        +0 +0: +0, 0; nonzero +inf: nan, nan; +0 +inf: +0, nan; nonzero nan: nan, nan;
        +0 nan: +0, nan; +inf pos: 1, ~0; +inf +inf: 1, ~0; +inf nan: 1, ~0; nan +0: nan, 0;
        nan !=0: nan, nan; nan nan: nan, nan
    """,
}

#: Each row is met by some of these.
VALUES = [
    math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 2.5, -2.5,
    0.25, 300.0, -300.0,
]  # fmt: skip
DTYPES = [wf.float16, wf.bfloat16, wf.float32, wf.float64]
COMPLEX_DTYPES = [wf.complex64, wf.complex128]
#: Units in the last place, of results that are not exact.
TOLERANCE = 8
#: So many copies of the operands make an eager call run as native code.
COPIES = 2000

Test = Callable[[float], bool]
WORDS: dict[str, Test] = {
    "any": lambda v: True, "finite": math.isfinite, "notnan": lambda v: not math.isnan(v),
    "nonzero": lambda v: math.isfinite(v) and v != 0, "inf": math.isinf, "0": lambda v: v == 0,
    "pos": lambda v: 0 < v < math.inf, "neg": lambda v: -math.inf < v < 0, "nan": math.isnan,
    "whole": lambda v: math.isfinite(v) and v == int(v),
    "fraction": lambda v: math.isfinite(v) and v != int(v),
    "odd": lambda v: math.isfinite(v) and v % 2 == 1,
    "notodd": lambda v: not math.isfinite(v) or v % 2 != 1,
    "+0": lambda v: v == 0 and math.copysign(1, v) > 0,
    "-0": lambda v: v == 0 and math.copysign(1, v) < 0,
}  # fmt: skip


def condition(text: str) -> Test:
    """What a cell of a row says of one number."""
    for sign, join in (("|", any), ("&", all)):
        if sign in text:
            tests = [condition(part) for part in text.split(sign)]
            return lambda v: join([t(v) for t in tests])
    if text in WORDS:
        return WORDS[text]
    if text.startswith("abs"):
        inner = condition(text[3:].lstrip("="))
        return lambda v: inner(abs(v))
    for sign, compare in (("!=", float.__ne__), (">", float.__gt__), ("<", float.__lt__)):
        if text.startswith(sign):
            bound = float(text.removeprefix(sign))
            return lambda v: compare(v, bound)
    number = float(text)
    return lambda v: v == number


def rows(text: str) -> Iterator[tuple[str, Callable[..., bool], str]]:
    """Of each row its text, what it says of the operands, and the result."""
    for row in text.split(";"):
        cells, result = (part.strip() for part in row.split(":"))
        first, *rest = cells.split()
        if rest == ["or"]:
            yield row.strip(), lambda *vs: any(map(math.isnan, vs)), result
        elif rest == ["-x1"]:
            test = condition(first)
            yield row.strip(), lambda a, b, test=test: test(a) and b == -a, result
        else:
            tests = [condition(cell) for cell in (first, *rest)]
            yield (
                row.strip(),
                lambda *vs, tests=tests: all(t(v) for t, v in zip(tests, vs, strict=True)),
                result,
            )


def number(text: str, names: dict[str, float]) -> float:
    known = {"inf": math.inf, "nan": math.nan, "pi": math.pi, "abs": abs}
    found = eval(text, known, names)
    return -0.0 if text == "-0" else found  # type: ignore[no-any-return]


def close(got: Any, text: str, names: dict[str, float], eps: float) -> bool:
    """Whether a real result, or a part of one, is as `text` says."""
    if text in ("True", "False"):
        return bool(got) is (text == "True")
    unsigned, got = text.startswith("~"), float(got)
    expected = number(text.lstrip("~"), names)
    if math.isnan(expected):
        return math.isnan(got)
    if unsigned:
        got, expected = abs(got), abs(expected)
    if expected == 0 and got == 0:
        signs = text == "0" or unsigned
        return signs or math.copysign(1, got) == math.copysign(1, expected)
    return got == expected or abs(got - expected) <= TOLERANCE * eps * abs(expected)


def fits(got: Any, text: str, names: dict[str, float], eps: float) -> bool:
    """Whether a result is as a row says."""
    if "*cis" in text:
        factor, shift = text.split("*cis")
        k = number(factor, names)
        cosine, sine = k * math.cos(names["b"]), k * math.sin(names["b"])
        parts = (f"{cosine!r}{shift}", repr(sine) if sine else "0")
    elif "," in text:
        parts = tuple(part.strip() for part in text.split(","))  # type: ignore[assignment]
    else:
        return any(close(got, choice, names, eps) for choice in text.split(" or "))
    return close(got.real, parts[0], names, eps) and close(got.imag, parts[1], names, eps)


def ways(function: Any, operands: list[np.ndarray[Any, Any]]) -> Iterator[tuple[str, Any]]:
    """The results of ways to run a function: of few elements, of one, of many, compiled."""
    tensors = [wf.asarray(x) for x in operands]
    yield "eager", function(*tensors).numpy()
    ones = [function(*(wf.asarray(x[k : k + 1]) for x in operands)).numpy() for k in range(30)]
    yield "one", np.concatenate(ones)
    many = function(*(wf.asarray(np.tile(x, COPIES)) for x in operands)).numpy()
    yield "many", many[: operands[0].size]
    yield "compiled", wf.compile(lambda *xs: function(*xs))(*operands).numpy()


def check(name: str, table: str, operands: list[np.ndarray[Any, Any]], names: Any) -> None:
    """Every way against every row; each row is met by an operand."""
    given = list(rows(table))
    chosen = [next(((t, r) for t, test, r in given if test(*v.values())), None) for v in names]
    unmet = [t for t, test, _ in given if not any(test(*v.values()) for v in names)]
    assert not unmet, f"no operand meets {unmet}"
    eps = float(wf.finfo(operands[0].dtype).eps)
    for way, results in ways(getattr(wf, name), operands):
        for value, row, got in zip(names, chosen, results, strict=False):
            if row is not None:
                assert fits(got, row[1], value, eps), f"{way}: {name}({value}) = {got}; {row[0]}"


@pytest.mark.share(24)
@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_of_one_real(name: str, dtype: wf.DType) -> None:
    x = np.array(VALUES, dtype.numpy).repeat(2)
    check(name, REAL[name], [x], [{"x": float(v)} for v in x])


@pytest.mark.share(12)
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_of_two_reals(name: str, dtype: wf.DType) -> None:
    x1, x2 = (g.ravel().astype(dtype.numpy) for g in np.meshgrid(VALUES, VALUES))
    pairs = [{"x1": float(a), "x2": float(b)} for a, b in zip(x1, x2, strict=True)]
    check(name, PAIRS[name], [x1, x2], pairs)


def complex_grid(dtype: wf.DType) -> Any:
    a, b = (g.ravel() for g in np.meshgrid(VALUES, VALUES))
    z = np.empty(a.size, dtype.numpy)
    z.real, z.imag = a, b
    return z


@pytest.mark.share(9)
@pytest.mark.parametrize("name", COMPLEX)
@pytest.mark.parametrize("dtype", COMPLEX_DTYPES, ids=str)
def test_of_a_complex_number(name: str, dtype: wf.DType) -> None:
    z = complex_grid(dtype)
    check(name, COMPLEX[name], [z], [{"a": float(v.real), "b": float(v.imag)} for v in z])


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["acos", "acosh", "exp", "expm1", "log", "log1p", "sqrt", "tanh"])
def test_of_the_conjugate_is_the_conjugate(name: str) -> None:
    """f(conj(z)) is conj(f(z)); the sign of a zero beside NaN is free."""
    z = complex_grid(wf.complex128)
    z = z[~np.isnan(z)]
    for (_, there), (_, back) in zip(
        ways(getattr(wf, name), [z]), ways(getattr(wf, name), [np.conj(z)]), strict=True
    ):
        there = np.conj(there)
        known = ~np.isnan(there)
        np.testing.assert_array_equal(np.isnan(there), np.isnan(back))
        np.testing.assert_allclose(back[known], there[known], rtol=1e-14)
        signs = np.signbit(there.imag[known]) == np.signbit(back.imag[known])
        assert np.all(signs)


def test_expm1_near_the_borders_of_its_cases() -> None:
    """Rows about infinities leave finite numbers alone: exp(z) - 1, and real where z is."""
    z = np.array([1 + 2j, -30 + 1j, 0.5 - 3j, 701 + 0j, 800 - 0j, 1e-20 + 1e-20j])
    for _, got in ways(wf.expm1, [z.repeat(5)]):
        got = got.reshape(6, 5)[:, 0] if got.size == 30 else got
        np.testing.assert_allclose(got[:3], np.exp(z[:3]) - 1, rtol=1e-14)
        np.testing.assert_allclose(got[3], np.exp(701.0), rtol=1e-14)
        assert got[4] == math.inf
        np.testing.assert_array_equal(got[3:5].imag, 0)
        np.testing.assert_allclose(got[5], z[5], rtol=1e-14)


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_signs_of_nan(dtype: wf.DType) -> None:
    """copysign takes and signbit tells the sign bit of NaN."""
    nan = np.array([math.nan] * 30, dtype.numpy)
    minus = np.copysign(nan, -np.ones_like(nan))
    for x, told in ((abs(nan), False), (minus, True)):
        assert all(np.all(got == told) for _, got in ways(wf.signbit, [x]))
        for y in (np.ones_like(x), -np.ones_like(x), x):
            for _, got in ways(wf.copysign, [y, x]):
                assert np.all(np.signbit(got) == told)
                np.testing.assert_array_equal(np.isnan(got), np.isnan(y))


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_clip(dtype: wf.DType) -> None:
    """NaN in x or in a bound gives NaN; bounds may be None, arrays and infinite."""
    x = np.array([math.nan, -math.inf, -2.0, 0.5, 3.0, math.inf] * 5, dtype.numpy)
    low = np.full_like(x, -1)
    unknown = np.full_like(x, math.nan)
    for _, got in ways(lambda x, low: wf.clip(x, low, 1), [x, low]):
        np.testing.assert_array_equal(got[:6].astype(float), [math.nan, -1, -1, 0.5, 1, 1])
    for _, got in ways(wf.clip, [x, unknown]):
        assert np.all(np.isnan(got))
    for _, got in ways(lambda x, y: wf.clip(x, max=y), [x, unknown]):
        assert np.all(np.isnan(got))
    for _, got in ways(wf.clip, [x]):
        np.testing.assert_array_equal(got.astype(float), x.astype(float))
    for _, got in ways(lambda x: wf.clip(x, -math.inf, math.inf), [x]):
        np.testing.assert_array_equal(got.astype(float), x.astype(float))


@pytest.mark.parametrize("exponent", [0.5, wf.asarray(0.5), wf.asarray([0.5])], ids=repr)
def test_powers_of_one_half_are_no_roots(exponent: Any) -> None:
    """pow(-inf, 0.5) is inf and pow(-0, 0.5) is 0; the square roots are NaN and -0."""
    x = np.array([-math.inf, -0.0, 4.0] * 10, np.float32)
    for _, got in ways(lambda x: wf.pow(x, exponent), [x]):
        np.testing.assert_array_equal(got[:3], [math.inf, 0, 2])
        assert not np.signbit(got[1])
