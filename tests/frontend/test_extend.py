"""wf.register_op, wf.register_kernel, wf.register_gradient: ops of the user's own."""

from __future__ import annotations

import os
import pickle  # noqa: TID251  # what users do to functions
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_counts import share
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import weft as wf
from weft.frontend.extend.ops import unregister_op
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops import OPS, REGISTERED
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph

Array = np.ndarray[Any, Any]
HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def _clean_table() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = set(OPS)
    yield
    for name in list(REGISTERED):
        unregister_op(name)
    assert set(OPS) == before


def soft_sign(**options: Any) -> Any:
    def reference(x: Array) -> Array:
        return x / (1 + np.abs(x))

    return wf.register_op("soft_sign", elementwise=True, reference=reference, **options)


def with_kernel(dtypes: Any = None, **options: Any) -> Any:
    op = soft_sign(**options)

    @wf.register_kernel(op, dtypes=dtypes)
    def kernel(x: Any) -> Any:
        return x / (1 + abs(x))

    return op


def extremes() -> Any:
    """Several results of several dtypes, and attributes of several kinds."""

    def rule(x: Any, *, scale: float, shift: Any, deep: bool, how: str) -> Any:
        rows = x.shape[:1]
        return wf.TensorType(x.dtype, rows), (wf.int64, rows)

    def reference(x: Array, *, scale: float, shift: Any, deep: bool, how: str) -> Any:
        where = x.argmax(1) if how == "max" else x.argmin(1)
        values = np.take_along_axis(x, where[:, None], 1)[:, 0]
        values = values * x.dtype.type(scale) + x.dtype.type(sum(shift) + deep)
        return values, where

    op = wf.register_op(
        "extremes",
        type_rule=rule,
        reference=reference,
        attrs={"scale": ("float", 1.0), "shift": ("ints", ()), "deep": (bool, False), "how": str},
        doc="The largest or smallest element of each row, and where it is.",
    )

    @wf.register_kernel("extremes", dtypes=[wf.float32, wf.float64])
    def kernel(
        x: Any, best: Any, where: Any, *, scale: Any, shift: Any, deep: Any, how: Any
    ) -> None:
        for i in range(x.shape[0]):
            k = 0
            for j in range(1, x.shape[1]):
                if (how == "max" and x[i, j] > x[i, k]) or (how != "max" and x[i, j] < x[i, k]):
                    k = j
            extra = 1 if deep else 0
            for s in shift:
                extra += s
            best[i] = x[i, k] * scale + extra
            where[i] = k

    return op


NO_GRADIENT = rf"(?s)'soft_sign' has no gradient.*{HERE}.*@wf.register_gradient\('soft_sign'\)"
X = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)


def raises(name: str, match: str) -> Any:
    return pytest.raises(getattr(wf.errors, name), match=match)


# ------------------------------------------------------------------------------------- register_op
def test_eagerly_compiled_and_in_a_graph() -> None:
    op = with_kernel()
    wanted = X / (1 + np.abs(X))
    np.testing.assert_array_equal(op(X).numpy(), wanted)
    np.testing.assert_allclose(wf.compile(op)(X).numpy(), wanted, rtol=1e-6)
    graph = wf.Graph()
    with graph.as_default():
        x = wf.placeholder(wf.float32, [None, 5])
        y = op(x) + 1.0
    with wf.Session(graph=graph) as session:
        np.testing.assert_allclose(session.run(y, {x: X}), wanted + 1, rtol=1e-6)


def test_elementwise_ops_promote_and_broadcast() -> None:
    mix = wf.register_op("mix", elementwise=True, reference=lambda a, b: 2 * a - b)

    @wf.register_kernel(mix)
    def kernel(a: Any, b: Any) -> Any:
        return 2 * a - b

    column = np.arange(4, dtype=np.float64)[:, None]
    wanted = 2 * X.astype(np.float64) - column
    for call in (mix, wf.compile(mix)):
        made = call(X, column)
        assert made.dtype is wf.float64
        np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-15)
        assert call(X, 1).dtype is wf.float32
    with raises("ShapeError", r"(?s)mix.*" + HERE):
        mix(X, np.zeros(3, np.float32))


@pytest.mark.slow
def test_several_results_and_attributes() -> None:
    op = extremes()
    for options in (
        {"how": "max"},
        {"how": "min", "scale": 2, "shift": [3, np.int64(4)], "deep": True},
    ):
        values, where = op(X, **options)
        got, at = wf.compile(lambda x, o=options: op(x, **o))(X)
        assert where.dtype is wf.int64
        np.testing.assert_allclose(got.numpy(), values.numpy(), rtol=1e-6)
        np.testing.assert_array_equal(at.numpy(), where.numpy())
    np.testing.assert_array_equal(values.numpy(), X.min(1) * 2 + 8)
    assert "largest or smallest" in op.__doc__
    assert str(op.__signature__) == "(x, /, *, scale, shift, deep, how)"


def test_any_number_of_operands() -> None:
    def rule(*types: Any) -> Any:
        return types[0].dtype, (len(types),)

    op = wf.register_op(
        "firsts", type_rule=rule, reference=lambda *xs: np.array([x[0] for x in xs])
    )

    @wf.register_kernel(op)
    def kernel(a: Any, b: Any, out: Any) -> None:
        out[0] = a[0]
        out[1] = b[0]

    a, b = np.array([1.0, 2.0]), np.array([3.0])
    for call in (op, wf.compile(op)):
        assert call(a, b).numpy().tolist() == [1, 3]


def test_text_form_and_interpreter() -> None:
    op = extremes()
    graph = wf.Graph()
    with graph.as_default():
        x = wf.placeholder(wf.float32, [4, 5])
        values, where = op(x, how="max", shift=(1, 2))
        made = graph._trace.graph([values._value, where._value])
    text = print_graph(made)
    assert '= extremes(%placeholder) {scale=1.0, shift=[1, 2], deep=false, how="max"} : ' in text
    again = parse_graph(text)
    assert again == made
    assert print_graph(again) == text
    got, at = interpret(again, [X])
    np.testing.assert_allclose(got, X.max(1) + 3, rtol=1e-6)
    np.testing.assert_array_equal(at, X.argmax(1))
    unregister_op("extremes")
    with pytest.raises(wf.errors.ParseError, match="there is no op 'extremes'"):
        parse_graph(text)


def test_replace_is_explicit() -> None:
    op = with_kernel()
    with pytest.raises(wf.errors.AlreadyExistsError, match=r"(?s)registered already.*replace=True"):
        soft_sign()
    first = wf.compile(lambda x: op(x))
    first(X)
    new = wf.register_op("soft_sign", elementwise=True, reference=lambda x: x + 1, replace=True)
    np.testing.assert_array_equal(op(X).numpy(), X + 1)
    with pytest.raises(wf.errors.UnsupportedError, match="has no kernel"):
        wf.compile(lambda x: new(x))(X)  # the old kernel went with the old op
    np.testing.assert_allclose(first(X).numpy(), X / (1 + np.abs(X)), rtol=1e-6)

    @wf.register_kernel(new)
    def kernel(x: Any) -> Any:
        return x + 1

    np.testing.assert_allclose(wf.compile(lambda x: new(x))(X).numpy(), X + 1, rtol=1e-6)


def same(x: Array) -> Array:
    return x


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("add", {}, wf.errors.AlreadyExistsError, "in weft itself"),
        ("my op", {}, ValueError, "must be a Python identifier"),
        ("lambda", {}, ValueError, "must be a Python identifier"),
        ("mine", {"reference": 3}, ValueError, "reference must be a function"),
        ("mine", {"elementwise": False}, ValueError, "needs a type_rule"),
        ("mine", {"attrs": {"k": "itn"}}, ValueError, "did you mean 'int'"),
        ("mine", {"attrs": {"k": ("int", "x")}}, TypeError, "must be of kind int, got 'x'"),
        ("mine", {"attrs": {"k": int}}, ValueError, "no parameter for the attribute 'k'"),
        ("mine", {"reference": lambda: 1}, ValueError, "has no operands"),
    ],
)
def test_bad_schemas(name: str, options: Any, error: Any, message: str) -> None:
    given_ = {"elementwise": True, "reference": same, **options}
    with pytest.raises(error, match=message) as caught:
        wf.register_op(name, **given_)
    assert HERE in str(caught.value)
    assert not REGISTERED


def test_replace_never_takes_wefts_own() -> None:
    with pytest.raises(wf.errors.AlreadyExistsError, match="in weft itself"):
        wf.register_op("add", elementwise=True, reference=same, replace=True)


def test_bad_calls() -> None:
    op = extremes()
    for call in (op, lambda *xs, **attrs: wf.compile(lambda: op(*xs, **attrs))()):
        with pytest.raises(
            wf.errors.TypeRuleError, match=r"(?s)takes 1 operands \(x\), got 2.*" + HERE
        ):
            call(X, X, how="max")
        with pytest.raises(wf.errors.TypeRuleError, match="needs the attribute 'how'"):
            call(X)
        with pytest.raises(wf.errors.TypeRuleError, match="did you mean 'scale'"):
            call(X, how="max", scales=1)
        with pytest.raises(wf.errors.TypeRuleError, match="'scale' must be of kind float, got 'x'"):
            call(X, how="max", scale="x")


def test_what_the_type_rule_raises_or_gives() -> None:
    def rule(x: Any) -> Any:
        if len(x.shape) != 2:
            raise ValueError("a matrix is needed")
        return "f32" if x.shape[0] == 1 else (x.dtype, x.shape)

    op = wf.register_op("checked", type_rule=rule, reference=same)
    for call in (op, wf.compile(op)):
        with pytest.raises(
            wf.errors.ShapeError, match=r"(?s)raised ValueError: a matrix.*" + HERE
        ) as c:
            call(np.zeros(3, np.float32))
        assert isinstance(c.value.__cause__, ValueError)
        with pytest.raises(wf.errors.TypeRuleError, match="gave 'f32', which is no type"):
            call(np.zeros((1, 3), np.float32))


def test_an_elementwise_op_has_one_result_of_its_operands_shape() -> None:
    for rule in (lambda x: (x.dtype, (2,)), lambda x: (x, x)):
        op = wf.register_op(
            "wide", elementwise=True, type_rule=rule, reference=same, replace="wide" in REGISTERED
        )
        with raises("TypeRuleError", "is elementwise; its type rule gave"):
            op(X)
    is_small = wf.register_op(
        "is_small",
        elementwise=True,
        type_rule=lambda x: (wf.bool_, x.shape),
        reference=lambda x: np.abs(x) < 1,
    )
    wf.register_kernel(is_small)(lambda x: abs(x) < 1)
    for call in (is_small, wf.compile(is_small)):
        np.testing.assert_array_equal(call(X).numpy(), np.abs(X) < 1)


def test_what_the_reference_raises_or_gives() -> None:
    def reference(x: Array) -> Any:
        if x.size == 3:
            raise ZeroDivisionError("three")
        return x.astype(np.float64)

    op = wf.register_op("checked", elementwise=True, reference=reference)
    with pytest.raises(
        wf.errors.UnknownError, match=r"(?s)raised ZeroDivisionError: three.*" + HERE
    ) as c:
        op(np.zeros(3, np.float32))
    assert isinstance(c.value.__cause__, ZeroDivisionError)
    with pytest.raises(ValueError, match=r"gave \(f64\[2\]\), its type rule says \(f32\[2\]\)"):
        op(np.zeros(2, np.float32))


def test_pickle_holds_the_name() -> None:
    data = pickle.dumps(soft_sign())
    np.testing.assert_array_equal(pickle.loads(data)(X).numpy(), X / (1 + np.abs(X)))
    unregister_op("soft_sign")
    with pytest.raises(wf.errors.NotFoundError, match="soft_sign"):
        pickle.loads(data)


# --------------------------------------------------------------------------------- register_kernel
def test_no_kernel_is_an_error_that_lists_those_there_are() -> None:
    op = with_kernel(dtypes=wf.float64)
    with pytest.raises(wf.errors.UnsupportedError) as caught:
        wf.compile(op)(X)
    text = str(caught.value)
    for part in ("op 'soft_sign' (f32[4,5])", "'kernel'", "on cpu for f64", HERE,
                 "@wf.register_kernel('soft_sign', dtypes=[wf.float32])"):  # fmt: skip
        assert part in text
    assert wf.compile(op)(X.astype(np.float64)).dtype is wf.float64


@pytest.mark.slow
def test_the_choice_is_by_dtypes_and_explained() -> None:
    op = wf.register_op(
        "pick", type_rule=lambda x, i: x, reference=lambda x, i: x[:] if i.ndim else x
    )

    @wf.register_kernel(op)
    def general(x: Any, i: Any, out: Any) -> None:
        out[:] = 1

    @wf.register_kernel(op, dtypes=[(wf.float32, wf.int64), wf.float64])
    def special(x: Any, i: Any, out: Any) -> None:
        out[:] = 2

    def run(x: Any, i: Any) -> Any:
        f = wf.compile(op)
        given_ = np.zeros(2, x), np.zeros(2, i)
        return f(*given_).numpy()[0], f.explain(*given_)

    for x, i, name, value in (
        (np.float32, np.int64, "special", 2), (np.float64, np.float64, "special", 2),
        (np.float32, np.int32, "general", 1), (np.float32, np.float32, "general", 1),
    ):  # fmt: skip
        got, text = run(x, i)
        assert got == value
        (line,) = [row for row in text.splitlines() if row.startswith("  pick (")]
        assert f"kernel '{name}' ({__file__}" in line
        assert "the one of 2 registered for" in line
        assert ("any dtypes" in line) == (name == "general")
    with pytest.raises(wf.errors.AlreadyExistsError, match=r"(?s)has a kernel on cpu.*'special'"):
        wf.register_kernel(op, dtypes=wf.float64)(lambda x, i, out: None)
    wf.register_kernel(op, dtypes=wf.float64, replace=True)(general)
    assert run(np.float64, np.float64)[0] == 1
    assert run(np.float32, np.int64)[0] == 2  # what it was registered for besides stays


@pytest.mark.slow
def test_a_kernel_is_compiled_once_for_all_sizes_and_numbers() -> None:
    from weft.codegen.llvm.jit import compile_count

    op = extremes()
    f = wf.compile(lambda x: op(x, how="max", scale=float(x.shape[0]), shift=(x.shape[1],)))
    f(X)
    before = compile_count()
    for shape in ((2, 3), (7, 5), (0, 4)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(f(x)[0].numpy(), x.max(1) * shape[0] + shape[1], rtol=1e-6)
    assert compile_count() == before


def test_bad_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_TRACEBACK")
    op = soft_sign()
    with pytest.raises(wf.errors.UnsupportedError, match=r"(?s)no device 'gpu'.*'cpu'"):
        wf.register_kernel(op, device="gpu")
    with pytest.raises(wf.errors.NotFoundError, match="no registered op 'soft_sing'; did you mean"):
        wf.register_kernel("soft_sing")
    with pytest.raises(wf.errors.UnsupportedError, match="weft's own op 'matmul' takes no kernel"):
        wf.register_kernel("matmul")  # elementwise ones do: tests/frontend/test_replaced_ops.py
    with pytest.raises(ValueError, match="2 dtypes for op 'soft_sign', which takes 1"):
        wf.register_kernel(op, dtypes=[(wf.float32, wf.int64)])
    with pytest.raises(ValueError, match="must be a Python function"):
        wf.register_kernel(op)(3)  # type: ignore[arg-type]

    @wf.register_kernel(op)
    def kernel(x: Any) -> Any:
        return open("no such file")

    with pytest.raises(
        wf.errors.TypeRuleError, match=r"(?s)Numba cannot compile.*'kernel'.*f32"
    ) as c:
        wf.compile(op)(X)
    assert HERE in str(c.value)
    line = kernel.__code__.co_firstlineno + 2
    first, fault, *_ = str(c.value).splitlines()
    assert "operands (f32)" in first
    assert f"/{HERE}:{line}: Untyped global name 'open'" in fault
    assert len(str(c.value).splitlines()) < 6
    assert c.value.__cause__ is None
    with pytest.raises(wf.errors.UnsupportedError, match="bf16, which Numba does not have"):
        wf.compile(op)(wf.zeros((2,), dtype=wf.bfloat16))


def test_operands_are_read_only() -> None:
    op = wf.register_op("spoil", type_rule=lambda x: x, reference=lambda x: x + 0)

    @wf.register_kernel(op)
    def kernel(x: Any, out: Any) -> None:
        x[0] = 1
        out[:] = x

    with pytest.raises(wf.errors.TypeRuleError, match="readonly"):
        wf.compile(op)(X)


def test_a_kernel_that_raises_ends_the_step_and_loses_nothing() -> None:
    op = wf.register_op("fussy", type_rule=lambda x: x, reference=lambda x: x + 0)

    @wf.register_kernel(op)
    def kernel(x: Any, out: Any) -> None:
        if x[0] < 0:
            raise ValueError("negative")
        out[:] = x

    count = wf.Variable(np.float32(0))

    @wf.compile
    def step(x: Any) -> Any:
        y = op(x)
        count.assign_add(wf.sum(y))
        return y

    for _ in range(3):  # Python's path, then the native one
        step(np.ones(3, np.float32))
        with pytest.raises(
            wf.errors.UnknownError, match=r"(?s)'fussy' \(f32\[3\]\).*'kernel'.*" + HERE
        ):
            step(-np.ones(3, np.float32))
    assert float(count) == 9


def test_threads_cut_elementwise_kernels_and_bits_stay() -> None:
    op = with_kernel()
    x = np.random.default_rng(3).standard_normal(300_001).astype(np.float32)
    one, many = wf.compile(op, threads=1), wf.compile(op)
    for _ in range(3):
        np.testing.assert_array_equal(one(x).numpy(), many(x).numpy())
    np.testing.assert_allclose(many(x).numpy(), x / (1 + np.abs(x)), rtol=1e-6)


@pytest.mark.slow
def test_many_python_threads_register_and_run() -> None:
    errors: list[BaseException] = []

    def work(k: int) -> None:
        try:
            name = f"scaled_{k}"
            op = wf.register_op(name, elementwise=True, reference=lambda x: x * k)
            wf.register_kernel(name)(lambda x: x * k)  # a closure
            for _ in range(5):
                np.testing.assert_allclose(wf.compile(lambda x: op(x))(X).numpy(), X * k, rtol=1e-6)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_runs_and_compiles() -> None:
    op = with_kernel()
    f = wf.compile(op)
    f(X)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            new = wf.register_op("doubled", elementwise=True, reference=lambda x: x * 2)
            wf.register_kernel(new)(lambda x: x * 2)
            fine = np.allclose(f(X).numpy(), X / (1 + np.abs(X)))
            code = 0 if fine and np.allclose(wf.compile(new)(X).numpy(), X * 2) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.examples
def test_a_registered_op_is_numpy() -> None:
    op = with_kernel()
    f = wf.compile(op)
    dtypes = st.sampled_from([np.float32, np.float64])
    shapes = hnp.array_shapes(min_dims=0, min_side=0, max_side=9)

    @given(hnp.arrays(dtypes, shapes))
    @settings(max_examples=share(120, 12), deadline=None, database=None)
    def check(x: Array) -> None:
        with np.errstate(all="ignore"):
            wanted = x / (1 + np.abs(x))
        np.testing.assert_array_equal(op(x).numpy(), wanted)
        np.testing.assert_allclose(f(x).numpy(), wanted, rtol=1e-6)

    check()


SCRIPT = """
import sys
import numpy as np
import weft as wf
assert "numba" not in sys.modules
op = wf.register_op("stale", elementwise=True, reference=lambda x: x * FACTOR)
@wf.register_kernel(op)
def kernel(x):
    return x * FACTOR
@wf.compile
def f(x):
    return op(x) + op(wf.ones((5,)))
assert "numba" not in sys.modules
x = np.ones(5, np.float32)
f(x)
f(x)
print(f(x).numpy()[0])
"""


@pytest.mark.slow
def test_an_edited_kernel_is_never_stale(tmp_path: Path) -> None:
    """Nothing of it is on disk: the same file with another constant gives the other results."""
    environment = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path), "WEFT_CACHE": "1"}
    script = tmp_path / "script.py"
    for factor in ("2", "3", "2"):
        script.write_text(SCRIPT.replace("FACTOR", factor))
        os.utime(script, (1, 1))
        made = subprocess.run(
            [sys.executable, str(script)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert float(made.stdout) == 2 * float(factor)


def test_in_loops_and_branches() -> None:
    op = with_kernel()

    def f(x: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            new = op(carry + row)
            return new, wf.cond(wf.sum(new) > 0, lambda: op(new), lambda: new * 2.0)

        return wf.scan(body, wf.zeros_like(x[0]), x)

    state, wanted = np.zeros(5, np.float32), []
    for row in X:
        state = (state + row) / (1 + np.abs(state + row))
        wanted.append(state / (1 + np.abs(state)) if state.sum() > 0 else state * 2)
    for call in (f, wf.compile(f)):
        last, rows = call(wf.asarray(X))
        np.testing.assert_allclose(last.numpy(), state, rtol=1e-5)
        np.testing.assert_allclose(rows.numpy(), np.stack(wanted), rtol=1e-5)


# ------------------------------------------------------------------------------- register_gradient
def with_gradient() -> Any:
    op = with_kernel()

    @wf.register_gradient(op)
    def gradient(site: Any, dy: Any) -> Any:
        assert site.name == "soft_sign"
        return dy / wf.square(1 + wf.abs(site.inputs[0]))

    return op


def test_gradients_of_any_order() -> None:
    op = with_gradient()
    x = np.array([-2.0, -0.5, 0.25, 3.0])
    first = wf.grad(lambda v: wf.sum(op(v)))
    second = wf.grad(lambda v: wf.sum(first(v)))
    third = wf.grad(lambda v: wf.sum(second(v)))
    wanted = [
        (first, 1 / (1 + abs(x)) ** 2), (second, -2 * np.sign(x) / (1 + abs(x)) ** 3),
        (third, 6 / (1 + abs(x)) ** 4),
    ]  # fmt: skip
    for f, values in wanted:
        np.testing.assert_allclose(f(wf.asarray(x)).numpy(), values, rtol=1e-12)
        np.testing.assert_allclose(wf.compile(f)(x).numpy(), values, rtol=1e-12)


def test_gradients_inside_loops_and_graphs() -> None:
    op = with_gradient()

    def f(x: Any) -> Any:
        def body(_: Any, v: Any) -> Any:
            return wf.cond(wf.sum(v) > 100.0, lambda: v, lambda: op(v) * 3.0)

        return wf.sum(wf.fori_loop(0, 4, body, x))

    x = np.array([0.5, -1.5])
    eps = 1e-6
    wanted = [
        (float(f(wf.asarray(x + d))) - float(f(wf.asarray(x - d)))) / (2 * eps)
        for d in np.eye(2) * eps
    ]
    for call in (wf.grad(f), wf.compile(wf.grad(f))):
        np.testing.assert_allclose(call(wf.asarray(x)).numpy(), wanted, rtol=1e-6)
    graph = wf.Graph()
    with graph.as_default():
        p = wf.placeholder(wf.float64, [2])
        (g,) = wf.gradients(f(p), [p])
    with wf.Session(graph=graph) as session:
        np.testing.assert_allclose(session.run(g, {p: x}), wanted, rtol=1e-6)


@pytest.mark.slow
def test_gradient_of_an_op_with_attributes_and_integer_results() -> None:
    op = extremes()

    @wf.register_gradient("extremes")
    def gradient(site: Any, dy: Any, nothing: Any) -> Any:
        assert nothing is None
        where = wf.one_hot(site.outputs[1], site.inputs[0].shape[1], dtype=wf.float32)
        return (where * wf.expand_dims(dy, 1) * site.get_attr("scale"),)

    g = wf.grad(lambda x: wf.sum(op(x, how="max", scale=3)[0]))
    wanted = (X.max(1, keepdims=True) == X) * 3.0
    np.testing.assert_array_equal(g(wf.asarray(X)).numpy(), wanted)
    np.testing.assert_array_equal(wf.compile(g)(X).numpy(), wanted)


def test_no_gradient_is_an_error_that_says_how() -> None:
    op = with_kernel()
    for call in (wf.grad(lambda x: wf.sum(op(x))), wf.compile(wf.grad(lambda x: wf.sum(op(x))))):
        with pytest.raises(wf.errors.GradientError, match=NO_GRADIENT):
            call(wf.asarray(X))
    fine = wf.grad(lambda x: wf.sum(wf.stop_gradient(op(x)) + x))
    np.testing.assert_array_equal(fine(wf.asarray(X)).numpy(), np.ones_like(X))


def test_bad_gradients() -> None:
    op = with_gradient()
    with pytest.raises(wf.errors.AlreadyExistsError, match="replace=True"):
        wf.register_gradient(op)
    outer = wf.asarray(X)
    count = wf.Variable(np.float32(1))
    wrong: list[tuple[Any, type[Exception], str]] = [
        (lambda s, dy: (dy, dy), wf.errors.GradientError, "gave 2 gradients for 1 operands"),
        (
            lambda s, dy: wf.sum(dy),
            wf.errors.GradientError,
            r"has type f32\[\], the operand f32\[4,5\]",
        ),
        (lambda s, dy: dy * count, wf.errors.GradientError, "reads the variable"),
    ]
    for function, error, message in wrong:
        wf.register_gradient(op, replace=True)(function)
        with pytest.raises(error, match=message):
            wf.grad(lambda x: wf.sum(op(x)))(outer)
    wf.register_gradient(op, replace=True)(lambda s, dy: None)
    np.testing.assert_array_equal(wf.grad(lambda x: wf.sum(op(x)))(outer).numpy(), np.zeros_like(X))
