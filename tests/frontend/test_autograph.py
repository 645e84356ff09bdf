"""`wf.compile(autograph=True)`: Python's control flow on tensors. The truth is Python itself, on
the same numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError

pytest.importorskip("malt")
F32 = np.float32


def branches(x: Any, y: Any) -> Any:
    if x > y:
        z = x - y
        w = 1
    elif x == y:
        z = x * 0
        w = 2
    else:
        z = y - x
        w = 3
    return z, w


def early_return(x: Any, y: Any) -> Any:
    if x > 10:
        return x
    if y > 10:
        return y
    return x + y


def collatz(x: Any, y: Any) -> Any:
    steps = 0
    while x != 1 and steps < 50:
        if x % 2 == 0:
            x = x // 2
        else:
            x = 3 * x + 1
        steps += 1
    return steps, x + y


def breaks(x: Any, y: Any) -> Any:
    total = 0
    for i in range(20):
        if i > y:
            break
        if i % 3 == 1:
            continue
        total = total + i * x
    return total


def counted(x: Any, y: Any) -> Any:
    total = x
    for i in range(y, 20, 2):
        for j in range(i):
            if j > 4:
                total = total - j
            else:
                total = total + j
    return total


def backwards(x: Any, y: Any) -> Any:
    last = 0
    for i in range(x + 10, y, -3):
        last = last * 2 + i
    return last


def nested_while(x: Any, y: Any) -> Any:
    count = 0
    while x > 0:
        inner = y
        while inner > 0:
            inner = inner - 2
            count = count + 1
            if count > 40:
                return count
        x = x - 1
    return count


def logic(x: Any, y: Any) -> Any:
    return (1 if x > 0 and y > 0 else 2) + (4 if x > 0 or not y > 0 else 8)


def helper(v: Any) -> Any:
    return v if v > 3 else 3 - v


class Model:
    def __init__(self) -> None:
        self.bias = 2

    def __call__(self, v: Any) -> Any:
        return self.scaled(v) + self.bias

    def scaled(self, v: Any) -> Any:
        if v < 0:
            v = -v
        return helper(v) * 2


model = Model()


def calls(x: Any, y: Any) -> Any:
    return model(x) + helper(y) + model.scaled(y)


def containers(x: Any, y: Any) -> Any:
    state = {"a": x, "b": (y, 0)}
    while state["a"] > 0:
        state = {"a": state["a"] - 1, "b": (state["b"][0] + 2, state["b"][1] + state["a"])}
    return state["b"]


def doubled(x: Any, y: Any) -> Any:
    for _ in range(3):  # Python's: nothing in it is a tensor's
        x = x + y
    names = [n for n in ("a", "b") if n != "a"]
    return x * len(names)


def chained(x: Any, y: Any) -> Any:
    seen = []

    def noted(v: Any) -> Any:
        seen.append(v)
        return v

    inside = 0 < noted(x) <= noted(y) < 30
    inside = 1 if inside else 2 if y is not None else 3
    assert len(seen) <= 2  # each is computed once at most
    return inside + (10 if 0 < len([1]) < 3 else 20)


def nested_conditionals(x: Any, y: Any) -> Any:
    return (1 if x > 3 else 2 if x > 1 else 3) if y > 0 else (4 if x < 0 else 5)


def annotated(x: Any, y: Any) -> Any:
    @dataclass
    class Pair:
        a: Any
        b: int = 3

    total: int = 0
    if x > y:
        total: int = x  # type: ignore[no-redef]
    return total + Pair(x).b


class Base:
    def shifted(self, v: Any) -> Any:
        return v + 1


class Heir(Base):
    def shifted(self, v: Any) -> Any:
        found = super().shifted(v)
        if v > 0:
            return found
        return found - 3


def inherited(x: Any, y: Any) -> Any:
    return Heir().shifted(x) * 100 + Heir().shifted(y)


def absolute(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(f)
    def wrapper(v: Any) -> Any:
        found = f(v)
        if found > 0:
            return found
        return -found

    return wrapper


def decorated(x: Any, y: Any) -> Any:
    @absolute
    def inner(v: Any) -> Any:
        return v - 2 if v > 2 else v - 9

    return inner(x) + inner(y)


def returns_early_in_a_loop(x: Any, y: Any) -> Any:
    for i in range(5):
        if i * x > y:
            return i
    return x


def returns_in_loops(x: Any, y: Any) -> Any:
    for i in range(5):
        if i * i > y:
            return i * 10
    while True:
        x = x + 1
        if x > 12:
            return x


PROGRAMS: list[Callable[[Any, Any], Any]] = [
    branches, early_return, collatz, breaks, counted, backwards, nested_while, logic, calls,
    containers, doubled, chained, nested_conditionals, annotated, inherited, decorated,
    returns_early_in_a_loop, returns_in_loops,
]  # fmt: skip
COMPILED = {f.__name__: wf.compile(f, autograph=True) for f in PROGRAMS}


def _numbers(result: Any) -> list[int]:
    found = result if isinstance(result, tuple) else (result,)
    return [int(x) for x in found]


@pytest.mark.share(6)
@pytest.mark.parametrize("name", COMPILED)
@given(x=st.integers(-6, 25), y=st.integers(-6, 25))
@examples(40)
def test_as_python(name: str, x: int, y: int) -> None:
    if name == "collatz":
        x = abs(x) + 1
    plain = next(f for f in PROGRAMS if f.__name__ == name)
    assert _numbers(COMPILED[name](np.int64(x), np.int64(y))) == _numbers(plain(x, y))


def enumerated(a: Any, b: Any, n: Any) -> Any:
    total = 0.0
    for i, x in enumerate(a):
        total = total + i * x
    for i, x in enumerate(b, n):
        total = total - i * x
    for i, j in enumerate(range(n), start=1):
        total = total + i * j
    for i in range(a.shape[0]):  # an open size, too
        total = total + a[i] * i
    return total


def zipped(a: Any, b: Any, n: Any) -> Any:
    total = 0.0
    for x, y in zip(a, b):  # noqa: B905
        total = total + x * y
    for i, x, j in zip(range(n, -9, -2), a, range(100)):  # noqa: B905
        total = total + i * x * j
    for (x,) in zip(b):
        total = total - x
    return total


def both_and_nested(a: Any, b: Any, n: Any) -> Any:
    total = 0.0
    for k, (x, (i, y)) in enumerate(zip(a, enumerate(b, 5)), 2):  # noqa: B905
        for j in range(n):
            if j > i:
                continue
            for z in a:
                total = total + k * x * y + z * j
    return total


def leaves_early(a: Any, b: Any, n: Any) -> Any:
    total, last = 0.0, 0
    for i, (x, y) in enumerate(zip(a, b)):  # noqa: B905
        if x + y > n:
            break
        total = total + x
        last = i
    for i, x in enumerate(b):
        if i == n:
            return total * 10 + x
        total = total + last
    return total


def beside_a_list(a: Any, b: Any, n: Any) -> Any:
    total = 0.0
    for name, x, i in zip(["a", "bc", "def"], a, range(9)):  # noqa: B905
        total = total + len(name) * x + i
    for i, name in enumerate(["a", "bc"], n):
        total = total + i * len(name)
    return total


def beside_numbers(a: Any, b: Any, n: Any) -> Any:
    total = 0.0
    for w, x in zip([0.5, -1.0, 2.0], a):  # noqa: B905
        total = total + w * x
    for i, (x, k, y) in enumerate(zip(a, (3, 1, 4, 1), b)):  # noqa: B905
        if x > n:
            continue
        total = total + i * k * x - y
    for _ in zip([], a):  # noqa: B905
        total = total + 1000
    for one, x in zip([n + 1, n - 1], b):  # noqa: B905
        total = total + one * x
    return total


OVER_ROWS: list[Callable[[Any, Any, Any], Any]] = [
    beside_numbers,
    enumerated,
    zipped,
    both_and_nested,
    leaves_early,
    beside_a_list,
]
WHOLE = {f.__name__: wf.compile(f, autograph=True) for f in OVER_ROWS}
OPEN = {
    f.__name__: wf.compile(
        f, autograph=True,
        input_signature=[*[wf.TensorType(wf.float64, (None,))] * 2, wf.TensorType(wf.int32)],
    )
    for f in OVER_ROWS[:-1]
}  # fmt: skip


@pytest.mark.share(4)
@pytest.mark.parametrize("name", WHOLE)
@given(
    a=st.lists(st.integers(-9, 9), max_size=4), b=st.lists(st.integers(-9, 9), max_size=4),
    n=st.integers(0, 6),
)  # fmt: skip
@examples(40)
def test_enumerate_and_zip_as_python(name: str, a: list[int], b: list[int], n: int) -> None:
    plain = next(f for f in OVER_ROWS if f.__name__ == name)
    rows = [np.array(x, np.float64) for x in (a, b)]
    for compiled in (WHOLE.get(name), OPEN.get(name)):
        if compiled is not None:
            assert float(compiled(*rows, np.int32(n))) == plain(rows[0], rows[1], n)


def test_numbers_of_enumerate_are_weak_and_rows_have_gradients() -> None:
    @wf.compile(autograph=True)
    def f(a: Any, b: Any) -> Any:
        def loss(a: Any, b: Any) -> Any:
            total = 0.0
            for i, (row, y) in enumerate(zip(a, b, strict=True)):
                total = total + wf.sum(row * y * i)
            return total

        return wf.value_and_grad(loss, argnums=(0, 1))(a, b)

    a, b = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([2, 3, 4], np.float32)
    value, (da, db) = f(a, b)
    assert value.dtype == wf.float32  # i is a Python number, no int64
    assert float(value) == float(sum(i * (a[i] * b[i]).sum() for i in range(3)))
    assert da.tolist() == [[0, 0], [3, 3], [8, 8]]
    assert db.tolist() == [0, 5, 18]
    ops = str(f.trace(a, b))
    assert "scan(" in ops
    assert "while(" not in ops


def zips_strictly(a: Any, b: Any) -> Any:
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total = total + x * y
    return total


def enumerates_a_number(a: Any, b: Any) -> Any:
    for _, x in enumerate(a[0]):
        b = b + x
    return b


def lists_them(a: Any, b: Any) -> Any:
    return [x * y for x, y in zip(a, b)]  # noqa: B905


def zips_open_and_names(a: Any, b: Any) -> Any:
    for name, x in zip(["a", "b"], a):  # noqa: B905
        b = b + x * len(name)
    return b


def test_what_enumerate_and_zip_refuse() -> None:
    two, three = np.ones(2, F32), np.ones(3, F32)
    of = [wf.TensorType(wf.float32, (None,))] * 2
    for function, kinds, message in [
        (zips_strictly, None, r"zip\(strict=True\): argument 2 has 2 elements, the first 3"),
        (zips_strictly, of, r"zip\(strict=True\): argument 2 is not as long as the first"),
        (enumerates_a_number, None, r"`enumerate` of f32\[\] .*, which has no first axis"),
        (lists_them, None, r"`zip` and `range` of tensors are for `for` statements"),
        (zips_open_and_names, of, r"a `zip` of tensors whose number of rows is open"),
    ]:
        run = wf.compile(function, autograph=True, input_signature=kinds)
        with pytest.raises(wf.errors.WeftError, match=message) as caught:
            run(three, two)
        (place, *_) = caught.value.locations
        assert place.file == __file__
        first = function.__code__.co_firstlineno
        assert first < place.line < first + 4
    assert float(wf.compile(zips_strictly, autograph=True, input_signature=of)(three, three)) == 3


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numbers_of_a_list_take_the_dtype_of_what_they_meet(dtype: Any) -> None:
    """As where the loop is unrolled."""

    def weighted(x: Any) -> Any:
        total = x[0] * 0
        for w, row in zip([0.5, 3.0, 0.1], x):  # noqa: B905
            total = total + w * row
        return total

    x = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], dtype)
    kinds = [wf.TensorType(dtype, (None, 2))]
    for rows in (1, 2, 3, 4):
        made = wf.compile(weighted, autograph=True, input_signature=kinds)(x[:rows])
        assert made.dtype.numpy == dtype
        wanted = wf.compile(weighted, autograph=True)(x[:rows])
        np.testing.assert_allclose(made.numpy(), wanted.numpy(), rtol=1e-3)


def test_gradients_go_to_tensors_of_a_list() -> None:
    def f(w: Any, x: Any) -> Any:
        total = 0.0
        for one, row in zip([w[0], w[1] * 2.0], x, strict=True):
            total = total + one * wf.sum(row)
        return total

    kinds = [wf.TensorType(wf.float32, (2,)), wf.TensorType(wf.float32, (None, 3))]
    run = wf.compile(wf.grad(wf.compile(f, autograph=True)), input_signature=kinds)
    x = np.arange(6, dtype=F32).reshape(2, 3)
    np.testing.assert_array_equal(run(np.ones(2, F32), x).numpy(), [3, 24])
    with pytest.raises(wf.errors.WeftError, match="argument 2 is not as long as the first"):
        run(np.ones(2, F32), np.ones((3, 3), F32))


@pytest.mark.parametrize("given", [[1, 2.0], ["a"], [np.ones(2), np.ones(3)], {"a": 1}, [1, True]])
def test_lists_that_are_no_tensor(given: Any) -> None:
    def f(x: Any) -> Any:
        total = 0.0
        for _, row in zip(given, x):  # noqa: B905
            total = total + row
        return total

    kinds = [wf.TensorType(wf.float32, (None,))]
    with pytest.raises(wf.errors.UnsupportedError, match=r"(?s)is open.*of one dtype and shape"):
        wf.compile(f, autograph=True, input_signature=kinds)(np.ones(3, F32))


def test_they_are_branches_and_loops_of_the_graph() -> None:
    text = str(COMPILED["collatz"].trace(np.int64(3), np.int64(0)))
    assert "while(" in text
    assert "cond(" in text
    assert COMPILED["doubled"].ir(np.int64(1), np.int64(1)).count("while") == 0


def test_rows_gradients_and_state() -> None:
    seen = wf.Variable(F32(0))

    @wf.compile(autograph=True)
    def f(xs: Any) -> Any:
        def loss(w: Any) -> Any:
            total = 0.0
            for x in xs:
                if x < 0:
                    continue
                if x > 100:
                    break
                total = total + w * x * x
            return total

        for x in xs:
            if x > 2:
                seen.assign_add(x)
        return loss(F32(2)), wf.grad(loss)(wf.asarray(F32(3)))

    value, slope = f(np.array([1, 2, -5, 4, 200, 7], F32))
    assert float(value) == 42.0
    assert float(slope) == 21.0
    assert float(seen) == 211.0


def test_prints_and_asserts_of_tensors_are_part_of_the_program(
    capfd: pytest.CaptureFixture[str],
) -> None:
    @wf.compile(autograph=True)
    def f(x: Any) -> Any:
        print("tracing", 1)
        print("x", x, sep=" = ")
        print(x, x, sep=None)
        print(x, x, sep="{}")
        assert x > 0, "x must be positive, not {x}"
        return x * 2

    for _ in range(3):
        assert float(f(F32(4))) == 8.0
    out, err = capfd.readouterr()
    assert out == "tracing 1\n"
    assert err == "x = 4.0\n4.0 4.0\n4.0{}4.0\n" * 3
    with pytest.raises(InvalidArgumentError, match=r"x must be positive, not \{x\}") as caught:
        f(F32(-1))
    assert caught.value.locations[0].file == __file__


def test_methods_and_static_arguments() -> None:
    class Net:
        @wf.compile(autograph=True, static_argnames="twice")
        def forward(self, x: Any, twice: bool = False) -> Any:
            if twice:
                x = x * 2
            if x > 0:
                return x
            return -x

    net = Net()
    assert float(net.forward(F32(-3))) == 3.0
    assert float(net.forward(F32(-3), twice=True)) == 6.0
    assert net.forward.__name__ == "forward"


def one_branch(x: Any) -> Any:
    if x > 0:
        z = x
    return z


def two_types(x: Any) -> Any:
    z = wf.zeros(3)
    if x > 0:
        z = wf.zeros(4)
    return z


def other_objects(x: Any) -> Any:
    name = "a"
    if x > 0:
        name = "b"
    return x, name


def one_returns(x: Any) -> Any:
    while x > 0:
        if x > 3:
            name = x
        x = x - 1
    return name


def breaks_in_list(x: Any) -> Any:
    for v in [1, 2, 3]:
        if v > x:
            break
        x = x - 1
    return x


def changes_object(x: Any) -> Any:
    name = "a"
    while x > 0:
        name = name + "b"
        x = x - 1
    return x, name


def range_by(x: Any) -> Any:
    total = x
    for i in range(0, 10, x):
        total = total + i
    return total


def breaks_in_scalar(x: Any) -> Any:
    total = x
    for row in x:
        if row > 3:
            break
        total = total + row
    return total


def assigns_in_condition(x: Any) -> Any:
    z = 0
    while (z := x - 1) > 0:
        x = x - 2
    return z


def assigns_in_and(x: Any) -> Any:
    z = 0
    if x > 0 and (z := x) > 1:
        return z
    return z


def assigns_in_conditional(x: Any) -> Any:
    z = 0
    return (z := x) if x > 0 else z


def returns_none(x: Any) -> Any:
    if x > 0:
        return x
    return None


def integers_of_and(x: Any) -> Any:
    return (x and 3) + 1


def integers_of_or(x: Any) -> Any:
    return (x > 1 or x) + 1


def appends(x: Any) -> Any:
    rows = [1]
    if x > 0:
        rows.append(2)
    return len(rows)


def appends_in_loop(x: Any) -> Any:
    rows = [1]
    while x > 0:
        rows.append(2)
        x = x - 1
    return len(rows)


def counts_by_function(x: Any) -> Any:
    n = 0

    def count() -> None:
        nonlocal n
        n += 1

    for _ in range(x):
        count()
    return n


def changes_attribute(x: Any) -> Any:
    m = Model()

    def change() -> None:
        m.bias = 7

    if x > 7:
        change()
    return m.bias


def uses_dict(x: Any) -> Any:
    known = {"a": 1}

    def change() -> None:
        known["a"] = 5

    if x > 7:
        change()
    return known["a"]


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (assigns_in_condition, "`:=` in the condition of a `while`"),
        (assigns_in_and, "`:=` in `and` or `or`"),
        (assigns_in_conditional, "`:=` in a conditional expression"),
        (returns_none, "what it returns is a tensor or number after one .* and None"),
        (integers_of_and, r"`and` on tensors takes bools, got i64\[\]"),
        (integers_of_or, r"`or` on tensors takes bools, got i64\[\]"),
        (appends, "a branch of an `if` on a tensor changes 'rows'"),
        (appends_in_loop, "a `while` on a tensor changes 'rows'"),
        (counts_by_function, "a `for` on a tensor changes 'n' by a function"),
        (changes_attribute, "a branch of an `if` on a tensor changes 'm'"),
        (uses_dict, "a branch of an `if` on a tensor changes 'known'"),
        (one_branch, "'z' has a value after one branch of an `if` on a tensor only"),
        (two_types, r"at result\['z'\]: .*f32\[3\].*f32\[4\]|f32\[4\].*f32\[3\]"),
        (other_objects, "'name' is 'b' after one branch of an `if` on a tensor and 'a' after the"),
        (one_returns, "'name' has (a|no) value"),
        (breaks_in_list, "a `break` in a loop over a list depends on a tensor"),
        (changes_object, "'name' is 'a' before a `while` on tensors, and changes in it"),
        (range_by, "the step of a range is a tensor"),
        (breaks_in_scalar, r"xs is a i64\[\], which has no first axis"),
    ],
)
def test_what_cannot_be_says_so_at_the_line(function: Any, message: str) -> None:
    with pytest.raises(wf.errors.WeftError, match=message) as caught:
        wf.compile(function, autograph=True)(np.int64(5))
    (place, *_) = caught.value.locations
    assert place.file == __file__
    first = function.__code__.co_firstlineno
    assert first < place.line < first + 12


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_ranges_of_small_integers_count_as_python_does(dtype: Any) -> None:
    def up(n: Any) -> Any:
        count = 0
        for _ in range(0, n, 2):
            count += 1
            if count > 1000:  # it went round and round
                break
        return count

    def down(n: Any) -> Any:
        last = 0
        for i in range(n, -300, -7):
            last = i
        return last

    for n in (0, 9, 127, *([255] if dtype is np.uint8 else [])):
        for f in (up, down):
            assert int(wf.compile(f, autograph=True)(dtype(n))) == f(n)


def range_of_float(x: Any) -> Any:
    total = 0
    for i in range(x * 0.5):
        total = total + i
    return total


def test_a_range_of_a_float_is_refused() -> None:
    with pytest.raises(TypeRuleError, match=r"a range of f.*no integer") as caught:
        wf.compile(range_of_float, autograph=True)(F32(5))
    assert caught.value.locations[0].file == __file__


def test_a_function_that_returns_on_one_way_only_says_so() -> None:
    """It gave zeros where Python gives None."""

    def half(x: Any) -> Any:  # noqa: RET503
        if x > 0:
            return x

    run = wf.compile(half, autograph=True)
    assert float(run(F32(3))) == 3.0
    with pytest.raises(InvalidArgumentError, match="came to its end without a `return`") as caught:
        run(F32(-3))
    assert caught.value.locations[0].file == __file__
    # where all ways return, nothing is checked
    for name in ("early_return", "returns_early_in_a_loop"):
        assert "assert(" not in str(COMPILED[name].trace(np.int64(1), np.int64(2)))


def test_without_it_the_error_names_it() -> None:
    with pytest.raises(wf.errors.WeftError, match="autograph=True"):
        wf.compile(one_branch)(F32(1))


def test_what_has_no_source_is_refused() -> None:
    namespace: dict[str, Any] = {}
    exec("def f(x):\n    return x", namespace)
    with pytest.raises(InvalidArgumentError, match="'f' cannot be converted"):
        wf.compile(namespace["f"], autograph=True)
    with pytest.raises(InvalidArgumentError, match="no Python function"):
        wf.compile(np.sin, autograph=True)
    with pytest.raises(UnsupportedError, match=r"print\(end=\)"):
        wf.compile(lambda x: print(x, end=""), autograph=True)(F32(1))


def bent(x: Any) -> Any:
    if x > 0:
        y = x * x
    else:
        y = -x
    return y


XS = np.array([3.0, -2.0], np.float32)


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (lambda: wf.vmap(bent), [9, 2]),
        (lambda: wf.vmap(wf.grad(bent)), [6, -1]),
        (lambda: wf.vmap(wf.jacfwd(bent)), [6, -1]),
        (lambda: wf.vmap(wf.hessian(bent)), [2, 0]),
        (lambda: wf.vmap(wf.checkpoint(bent)), [9, 2]),
    ],
)
def test_what_transformations_make(made: Callable[[], Any], wanted: list[float]) -> None:
    """`wf.compile(wf.grad(f), autograph=True)` converts `f`."""
    assert wf.compile(made(), autograph=True)(XS).numpy().tolist() == wanted


def test_functions_that_transformations_branches_and_loops_are_given() -> None:
    @wf.compile(autograph=True)
    def f(x: Any, xs: Any) -> Any:
        return (
            wf.grad(bent)(x), wf.vmap(bent)(xs), wf.jvp(bent, (x,), (x,))[1],
            wf.fori_loop(0, 2, lambda i, x: bent(x) + 1, x),
            wf.cond(x > 1, lambda: bent(x) if x > 2 else x, lambda: x),
        )  # fmt: skip

    got = [np.asarray(t).tolist() for t in f(np.float32(3), XS)]
    assert got == [6, [9, 2], 18, 101, 9]


def test_a_function_of_wefts_without_one_of_yours() -> None:
    with pytest.raises(
        wf.errors.InvalidArgumentError, match=r"'sin' is a function of weft's alone"
    ):
        wf.compile(wf.sin, autograph=True)
