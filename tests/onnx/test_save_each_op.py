"""Each op as ONNX nodes: onnxruntime gives what the interpreter gives, for random graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from graphs import Case, graph_and_inputs, graphs, random_array
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx_runs import check, checked, run_reference, run_runtime
from stable_results import Overflow, stable_results

import weft as wf
from weft.frontend.bundle.signature import Exported, Weights
from weft.frontend.onnx.nodes.control import BUILDERS as CONTROL
from weft.frontend.onnx.nodes.dtypes import RUNS_IN, working_dtype
from weft.frontend.onnx.nodes.table import BUILDERS, REFUSED
from weft.frontend.onnx.save import written
from weft.ir import dtypes
from weft.ir.dims import substitute_dim
from weft.ir.errors import UnsupportedError, WeftError
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops import OPS
from weft.ir.text.parser import parse_graph
from weft.passes.pipelines import PASSES

Array = np.ndarray[Any, Any]
#: onnxruntime's Python has no arrays of bfloat16.
DTYPES = [d for d in dtypes.ALL if d.kind in ("bool", "int", "uint", "float")]
DTYPES = [d for d in DTYPES if d is not dtypes.bfloat16]
WINDOWS = [n for n in BUILDERS if n.startswith(("conv", "window")) and n != "conj"]
#: Of these onnxruntime may lose a NaN.
LOSE_NAN = {"max", "min", "argmax", "argmin", "sort", "argsort", "window_max", "window_pick"}
LOSE_NAN |= {"scatter_nd_min", "scatter_nd_max"}
#: onnxruntime adds up integers as floats of 64 bits.
BY_FLOATS = {"sum", "prod"}
FEW = settings(
    max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


def test_every_op_has_a_row() -> None:
    """A new op is written, or says why it is not; so a row is one of an op."""
    rows = [*BUILDERS, *CONTROL, *REFUSED, "group"]
    assert len(rows) == len(set(rows))
    assert set(OPS) <= set(rows)
    assert set(rows) <= set(OPS)
    for why, hint in REFUSED.values():
        assert why
        assert hint


def graph_model(graph: Graph, opset: int = 20) -> Any:
    """A graph of the IR without state as a model, checked."""
    pure = PASSES["dce"](graph)
    names = tuple(f"x{k}" for k in range(len(pure.args)))
    outputs = [f"y{k}" for k in range(len(pure.results))]
    plain = Graph("g", pure.block, names, pure.stage)
    exported = Exported(plain, (), None, (), outputs, len(names), (), ())
    return checked(written(exported, Weights(), opset).message())


def arrays_of(case: Case) -> Iterator[Array]:
    yield from case.inputs
    for op in case.graph.walk():
        if op.name == "constant":
            yield op.attrs["value"].array  # type: ignore[union-attr]


def comparable(case: Case, op: str) -> bool:
    """Whether onnxruntime promises what weft does, for these inputs."""
    for x in arrays_of(case):
        if op in LOSE_NAN and x.dtype.kind == "f" and np.isnan(x).any():
            return False
        if (
            op in BY_FLOATS
            and x.dtype.kind in "iu"
            and np.abs(x.astype(np.float64)).max(initial=0) > 99
        ):
            return False
    return any(o.name == op for o in case.graph.walk())


def within(got: Array, centre: Array, spread: Array) -> None:
    assert got.dtype == centre.dtype
    assert got.shape == centre.shape
    if got.dtype.kind != "f":
        assert ((got == centre) | np.isinf(spread)).all(), f"{got} != {centre}"
        return
    with np.errstate(all="ignore"):
        x, c = got.astype(np.float64), centre.astype(np.float64)
        near = 1e-2 if got.dtype == np.float16 else 1e-5
        fine = np.abs(x - c) <= spread + near * (1 + np.abs(c))
        fine |= (x == c) | (np.isnan(x) & np.isnan(c)) | np.isinf(spread)
    assert fine.all(), f"{x[~fine]} != {c[~fine]} +- {spread[~fine]}"


def agree(case: Case, opset: int = 20) -> None:
    """The model of a graph gives what the interpreter gives, in onnxruntime; where that lacks an
    operator for float64, in the reference evaluator."""
    assume(case.graph.results)
    try:
        results, _ = stable_results(case.graph, case.inputs, case.state, 1)
    except Overflow:
        return
    try:
        model = graph_model(case.graph, opset)
    except UnsupportedError:
        assume(False)
    try:
        got = run_runtime(model, case.inputs)
    except Exception as error:
        if "NOT_IMPLEMENTED" not in str(error):
            raise
        assert any(x.dtype == np.float64 for x in arrays_of(case))
        assume(not {"Loop", "Scan"} & {n.op_type for n in model.graph.node})  # it stacks otherwise
        got = run_reference(model, case.inputs)
    for x, wanted in zip(got, results, strict=True):
        if wanted is not None:
            within(x, *wanted)


def comes_back(case: Case, opset: int = 20) -> None:
    """What `wf.onnx.load` makes of the model gives what the interpreter gives."""
    assume(case.graph.results)
    try:
        results, _ = stable_results(case.graph, case.inputs, case.state, 1)
    except Overflow:
        return
    try:
        model = graph_model(case.graph, opset)
    except UnsupportedError:
        assume(False)
    got = wf.onnx.load(model)(*case.inputs).values()
    for x, wanted in zip(map(np.asarray, got), results, strict=True):
        if wanted is not None:
            within(x, *wanted)


PLAIN = [n for n in (*BUILDERS, *CONTROL) if "host" not in OPS[n].traits and n not in WINDOWS]


@pytest.mark.share(32)
@pytest.mark.parametrize("op", PLAIN)
def test_an_op(op: str) -> None:
    @FEW
    @given(graph_and_inputs(stage="traced", ops=[op], dtypes=DTYPES, max_ops=2))
    def of_all_dtypes(case: Case) -> None:
        assume(comparable(case, op))
        agree(case)

    of_all_dtypes()


@pytest.mark.share(80)
@pytest.mark.parametrize("op", [*PLAIN, *WINDOWS])
def test_an_op_there_and_back(op: str) -> None:
    kinds = [dtypes.float32] if op in WINDOWS else DTYPES

    @settings(FEW, max_examples=4)
    @given(graph_and_inputs(stage="traced", ops=[op], dtypes=kinds, max_ops=2))
    def of_all_dtypes(case: Case) -> None:
        comes_back(case)

    of_all_dtypes()


@pytest.mark.share(4)
@pytest.mark.parametrize("op", WINDOWS)
def test_a_window(op: str) -> None:
    """Strides, dilations, pads on any side, groups; windows that see nothing."""

    @settings(FEW, max_examples=15)
    @given(graph_and_inputs(stage="traced", ops=[op], dtypes=[dtypes.float32], max_ops=1))
    def of_floats(case: Case) -> None:
        assume(comparable(case, op))
        agree(case)

    of_floats()


@pytest.mark.parametrize(("lo", "size"), [(7, 2), (-5, 2), (2, 1), (1, 1), (-1, 1)])
def test_windows_that_see_nothing(lo: int, size: int) -> None:
    """All of them lie in the padding, or behind the end; a bias is added all the same."""
    graph = parse_graph(f"""
        graph @f(%x: f32[2,3,2,1], %w: f32[1,1,1,2]) -> (f32[2,3,{size},2]) stage=traced {{
          %0 = conv(%x, %w) {{strides=[1, 1], lo=[0, {lo}], dilation=[1, 1], size=[3, {size}]}}
            : f32[2,3,{size},2]
          %1 = constant() {{value=f32[2] [1.5, -2.0]}} : f32[2]
          %2 = broadcast_to(%1) {{shape=[2,3,{size},2]}} : f32[2,3,{size},2]
          %3 = add(%0, %2) : f32[2,3,{size},2]
          return %3
        }}""")
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 2, 1), (1, 1, 1, 2))]
    np.testing.assert_allclose(
        run_runtime(graph_model(graph), arrays)[0], interpret(graph, arrays)[0], rtol=1e-5
    )


MIXED = [n for n in PLAIN if n not in LOSE_NAN | BY_FLOATS and n not in ("power", "copysign")]


@pytest.mark.examples
@settings(FEW, max_examples=40)
@given(
    graph_and_inputs(stage="traced", ops=MIXED, dtypes=DTYPES, max_ops=10),
    st.sampled_from([20, 23]),
)
def test_random_graphs(case: Case, opset: int) -> None:
    agree(case, opset)


@pytest.mark.examples
@settings(FEW, max_examples=20)
@given(
    graph_and_inputs(stage="traced", ops=PLAIN, dtypes=DTYPES, max_ops=8),
    st.sampled_from([20, 23]),
)
def test_random_graphs_there_and_back(case: Case, opset: int) -> None:
    comes_back(case, opset)


@pytest.mark.examples
@settings(FEW, max_examples=40)
@given(
    graphs(stage="traced", ops=MIXED, dtypes=DTYPES, max_ops=7, symbolic=True),
    st.fixed_dictionaries({"b": st.integers(0, 3), "n": st.integers(0, 3)}),
    st.integers(0, 2**31),
)
def test_random_graphs_of_open_sizes(graph: Graph, sizes: dict[str, int], seed: int) -> None:
    """The file knows names, each run its sizes, of which some are 0."""
    arrays = []
    for k, arg in enumerate(graph.args):
        shape = [2 if d is None else substitute_dim(d, sizes) for d in arg.type.shape]
        arrays.append(random_array(arg.type.dtype, shape, seed + k))
    try:
        interpret(graph, arrays)
    except WeftError:
        assume(False)  # sizes without names that do not fit each other, an index out of bounds
    agree(Case(graph, arrays, {}))


SHAPES = st.sampled_from([(), (0,), (3,), (2, 3), (1, 4, 2)])


class TestFormulas:
    """Formulas of several nodes, at the numbers where they would break."""

    AWKWARD = np.array(
        [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, -1e-30, 1e-8, -1e-8, 0.5, -0.5, 1.0, -1.0, 20.0,
         -20.0, 80.0, -80.0, 1e30, -1e30, 1e-4, -1.5, 2.5], np.float32,
    )  # fmt: skip

    @pytest.mark.parametrize("op", ["expm1", "log1p", "cbrt", "trunc", "signbit", "isfinite"])
    def test_of_one(self, op: str) -> None:
        x = self.AWKWARD
        model = graph_model(wf.compile(getattr(wf, op)).trace(wf.asarray(x)))
        wanted = np.asarray(getattr(wf, op)(wf.asarray(x)))
        if op == "signbit":  # of NaN there is none
            x, wanted = x[1:], wanted[1:]
            model = graph_model(wf.compile(wf.signbit).trace(wf.asarray(x)))
        np.testing.assert_allclose(run_runtime(model, [x])[0], wanted, rtol=3e-6)

    @pytest.mark.parametrize(
        "op", ["hypot", "logaddexp", "atan2", "copysign", "remainder", "floor_divide"]
    )
    def test_of_two(self, op: str) -> None:
        a, b = (x.ravel() for x in np.meshgrid(self.AWKWARD, self.AWKWARD))
        keep = np.ones(a.shape, np.bool_)
        if op == "copysign":
            keep = ~np.isnan(b)
        if op in ("remainder", "floor_divide"):  # where a quotient is no whole number of 24 bits
            with np.errstate(all="ignore"):
                keep = ~(np.abs(a / b) > 1e6) & np.isfinite(a) & ~np.isnan(b)
        a, b = a[keep], b[keep]
        function = getattr(wf, op)
        model = graph_model(wf.compile(function).trace(wf.asarray(a), wf.asarray(b)))
        with np.errstate(all="ignore"):
            wanted = np.asarray(function(wf.asarray(a), wf.asarray(b)))
        np.testing.assert_allclose(run_runtime(model, [a, b])[0], wanted, rtol=1e-5, atol=1e-38)

    @pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint32"])
    def test_integers_divided(self, dtype: str) -> None:
        """By 0, by -1, the least number among them, and by constants."""
        info = np.iinfo(dtype)
        numbers = np.array([info.min, info.max, 0, 1, 2, 3, 7, 100], dtype)
        if info.min:
            numbers = np.concatenate([numbers, np.array([-1, -2, -3, -7], dtype)])
        a, b = (x.ravel() for x in np.meshgrid(numbers, numbers))
        check(lambda a, b: (a // b, a % b), (a, b), (a, b), reference=False)
        check(lambda a: (a // 3, a % 3), (a,), (a,))

    @pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint32"])
    def test_shifts(self, dtype: str) -> None:
        numbers = np.array([0, 1, 2, 3, 7, 8, 15, 31, 63, 64, 100], dtype)
        if np.iinfo(dtype).min:
            numbers = np.concatenate([numbers, -numbers])
        a, b = (x.ravel() for x in np.meshgrid(numbers, numbers))
        check(
            lambda a, b: (wf.bitwise_left_shift(a, b), wf.bitwise_right_shift(a, b)), (a, b), (a, b)
        )
        check(lambda a: (a << 3, a >> 2), (a,), (a,))

    @given(st.integers(0, 2**32 - 1), SHAPES, st.sampled_from(["float32", "int32", "uint64"]))
    @settings(FEW, max_examples=20)
    def test_sums_of_integers_and_floats(self, seed: int, shape: Any, dtype: str) -> None:
        rng = np.random.default_rng(seed)
        x = rng.integers(0, 50, shape).astype(dtype)
        check(lambda x: (wf.sum(x), wf.sum(x, axis=-1) if shape else x * 2), (x,), (x,))


def test_powers_of_integers() -> None:
    x = np.array([-3, 0, 2, 5], np.int32)
    model = check(lambda x: (x**5, x**0), (x,), (x,))
    assert "Pow" not in [n.op_type for n in model.graph.node]
    with pytest.raises(UnsupportedError, match=r"op 'power' \(.*test_save_each_op.py:\d+"):
        wf.onnx.save(lambda x, n: x**n, example=(x, x))


def test_sizes_that_depend_on_values() -> None:
    """Sizes that are known when the model runs, in what follows, too."""

    def f(x: Any) -> Any:
        rows = wf.argwhere(x > 0)
        values, counts = wf.unique_counts(wf.astype(x, wf.int64))
        left, right = wf.dynamic_partition(x, wf.astype(x > 1, wf.int32), 2)
        again = wf.repeat(x, wf.astype(wf.abs(x), wf.int64))
        both = wf.dynamic_partition(wf.arange(x.shape[0]), wf.astype(x > 1, wf.int32), 2)
        one = wf.dynamic_stitch(both, [left * 2, right])
        return rows * 2, values, counts, left + 1, wf.concat([right, left]), wf.sum(again), one

    example = wf.TensorType(wf.float32, ("n",))
    calls = [np.array(v, np.float32) for v in ([1, -2, 3, 0.5, 1, 1], [0, -1], [7], [])]
    check(f, example, *[(c,) for c in calls])


class TestDtypes:
    def test_the_table_is_what_onnxruntime_has(self) -> None:
        """Of each operator in the table, for the versions at both opsets."""
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        short = {"float": "f32", "double": "f64", "bool": "bool", "string": "string"}
        short |= {
            f"{u}int{n}": f"{'u' if u else 'i'}{n}" for u in ("", "u") for n in (8, 16, 32, 64)
        }
        short |= {"float16": "f16", "bfloat16": "bf16"}
        known: dict[tuple[str, int], set[str]] = {}
        for row in state.get_all_opkernel_def():
            if row.provider != "CPUExecutionProvider" or row.domain:
                continue
            first, last = row.version_range
            for opset in (20, 23):
                if not first <= opset <= last:
                    continue
                names = row.type_constraints.get("T") or next(
                    (v for k, v in row.type_constraints.items() if k in ("T1", "V")), []
                )
                found = known.setdefault((row.op_name, opset), set())
                found |= {short[n[7:-1]] for n in names if n[7:-1] in short}
        functions = {"Mish", "Softsign"}  # with a body of others, or in all dtypes
        for kind, wanted in RUNS_IN.items():
            for opset in (20, 23):
                if kind in functions or (kind == "Attention" and opset == 20):
                    continue
                if kind == "RMSNormalization" and opset == 20:
                    continue
                assert set(wanted) <= known[kind, opset], (kind, opset)

    def test_what_is_computed_in_another_dtype(self) -> None:
        assert working_dtype("MatMul", dtypes.int8) is dtypes.int32
        assert working_dtype("Where", dtypes.bool_) is dtypes.uint8
        assert working_dtype("Add", dtypes.bfloat16) is dtypes.float32
        assert working_dtype("Erf", dtypes.float64) is dtypes.float64  # nothing is wider
        assert working_dtype("Reshape", dtypes.bfloat16) is dtypes.bfloat16

    def test_bfloat16_within(self) -> None:
        """Inputs and outputs are float32, what is between bfloat16."""
        x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)

        def f(x: Any) -> Any:
            y = wf.astype(x, wf.bfloat16)
            made = wf.nn.softmax(wf.matmul(y, wf.matrix_transpose(y)) + wf.exp(y[:, :3]))
            return wf.astype(made, wf.float32)

        check(f, (x,), (x,), near=2e-2)

    def test_float16(self) -> None:
        x = np.array([np.nan, -2, 0], np.float16)
        check(wf.sign, (x,), (x,))
        x = np.linspace(-2, 2, 12, dtype=np.float16).reshape(3, 4)
        check(lambda x: (wf.nn.gelu(x), x @ x.mT, wf.sum(x, 1), wf.expm1(x)), (x,), (x,), near=2e-2)


def test_strings_are_moved_and_compared() -> None:
    words = np.array([[b"a", b"b"], [b"c", b"a"]], object)

    def f(x: Any) -> Any:
        return wf.concat([x, x])[:, ::-1], x == "a"

    model = graph_model(wf.compile(f).trace(wf.TensorType(wf.string, (2, 2))))
    moved, same = run_runtime(model, [words.astype(str)])
    assert moved.tolist() == [["b", "a"], ["a", "c"], ["b", "a"], ["a", "c"]]
    assert same.tolist() == [[True, False], [False, True]]


def test_an_op_of_the_user() -> None:
    """Named with its place, with all others that have no form in ONNX."""

    @wf.elementwise
    def bent(x: Any) -> Any:
        return x if x > 0 else 0.1 * x

    def f(x: Any) -> Any:
        y = bent(x)
        z = wf.linalg.cholesky(wf.matmul(x, x.mT))
        return y, wf.fft.fft(x), z

    with pytest.raises(UnsupportedError) as caught:
        wf.onnx.save(f, example=wf.TensorType(wf.float32, (3, 3)))
    told = str(caught.value)
    for op in ("scalar_function", "cholesky", "fft"):
        assert f"op '{op}' (" in told
        assert "test_save_each_op.py" in told
    assert "compute it with ops of weft" in told
