"""Plain nests without reductions as CUDA launches, and random ones of all kinds."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from compiled_checks import Case, check, plain, same
from cuda_graphs import lanes, run
from cuda_nests import NestRun, aligned, fused_op
from cuda_toolchain import needs_toolchain
from example_counts import examples
from graphs import Case as GraphCase
from graphs import graph_and_inputs
from hypothesis import example, given
from hypothesis import strategies as st
from paths import CASES
from random_graph_checks import LOOPS, within
from stable_results import Overflow, stable_results

from weft.codegen.call import Address
from weft.codegen.cuda.cubins.compile import emit_ptx
from weft.codegen.cuda.emulator import run as emulate
from weft.codegen.cuda.nests.body import index_of
from weft.codegen.cuda.nests.plain_nests import plain_launches
from weft.codegen.cuda.source import writer
from weft.codegen.cuda.source.dtypes import DTYPES
from weft.codegen.cuda.source.writer import Source, index_dtype, multiplier
from weft.codegen.nests.nest import Access, Nest, Statement, Store
from weft.ir import dtypes
from weft.ir.dtypes import as_dtype
from weft.ir.errors import UnsupportedError
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops.builder import Builder
from weft.ir.spec import ConstArray
from weft.ir.types import TensorType
from weft.passes.fusion.fuse import fuse

Array = np.ndarray[Any, Any]
by_name = pytest.mark.parametrize
GOLDEN = CASES / "cuda_nests.txt"
KINDS = [d for d in dtypes.ALL if d.short in DTYPES]
WHOLE = [d for d in KINDS if not d.is_floating]
NESTS = [n for n in LOOPS if n not in ("matmul", "digamma", "lgamma")]


def run_of(case: Case, **more: Any) -> NestRun:
    return NestRun(fused_op(case.graph()), case.inputs, **more)


def check_case(case: Case, **more: Any) -> NestRun:
    """The nest of a graph means what the interpreter means."""
    made = run_of(case, **more)
    for a, b in zip(made.run(), interpret(case.graph(), case.inputs), strict=True):
        check("nest", a, b)
    return made


def adds(dtype: str, *shapes: tuple[int, ...]) -> Case:
    """The sum of operands, broadcast to the shape of the first one."""
    case = Case()
    first = case.input(plain(as_dtype(dtype), shapes[0]))
    for k, shape in enumerate(shapes[1:]):
        other = case.input(plain(as_dtype(dtype), shape, k))
        wide = case.hidden("broadcast_to", other, shape=shapes[0])
        first = (case.hidden if k < len(shapes) - 2 else case.op)("add", first, wide)
    return case


class TestRandom:
    @given(graph_and_inputs(stage="optimized", ops=NESTS, dtypes=WHOLE, max_ops=14))
    @examples(40)
    def test_whole_numbers_exactly(self, case: GraphCase) -> None:
        got = run(fuse(case.graph), case.inputs, lanes)
        for a, b in zip(got, interpret(case.graph, case.inputs), strict=True):
            assert same(a, np.asarray(b))

    @given(
        graph_and_inputs(
            stage="optimized",
            ops=NESTS,
            dtypes=[dtypes.float16, dtypes.float32, dtypes.float64, dtypes.bool_],
            max_ops=14,
        )
    )
    @examples(40)
    def test_floats(self, case: GraphCase) -> None:
        try:
            results, _ = stable_results(case.graph, case.inputs, case.state, 1)
        except Overflow:
            return
        for a, wanted in zip(run(fuse(case.graph), case.inputs, lanes), results, strict=True):
            assert wanted is not None
            within(a, *wanted)


class TestVectors:
    """How many elements a thread takes, and by which accesses."""

    @by_name(("dtype", "lanes"), [("f32", 4), ("f64", 2), ("f16", 8), ("u8", 16), ("i16", 8)])
    def test_one_loop(self, dtype: str, lanes: int) -> None:
        for size in (lanes, 37, 1024, 1037):
            made = check_case(adds(dtype, (size,), (size,)))
            assert made.source.count("load_") == 2
            assert made.source.count("store_") == 1
            assert made.launches[0].blocks == max(1, -(-(size // lanes) // 256))

    def test_mixed_widths(self) -> None:
        case = Case()
        x, m = case.input(plain(dtypes.float16, (100,))), case.input(plain(dtypes.bool_, (100,)))
        wide = case.hidden("astype", x, dtype=dtypes.float32)
        case.op("where", m, wide, case.hidden("negative", wide))
        source = check_case(case).source
        assert source.count("load_u16x8") == 1
        assert source.count("store_f32x4") == 2  # 8 elements
        assert "load_u8x16" not in source

    def test_rows_of_whole_vectors(self) -> None:
        source = check_case(adds("f32", (33, 64), (64,), (33, 1))).source
        assert source.count("load_f32x4") == 2
        assert check_case(adds("f32", (33, 65), (65,), (33, 1))).source.count("load_") == 0

    @by_name(("columns", "vectors"), [(96, 2), (100, 1), (102, 0)])
    def test_rows_of_narrow_and_wide(self, columns: int, vectors: int) -> None:
        """Where eight columns do not fit, the wide ones are still stored by vectors of four."""
        case = Case()
        x = case.input(plain(dtypes.float32, (33, columns)))
        row = case.input(plain(dtypes.float32, (columns,)))
        wide = case.hidden("broadcast_to", row, shape=(33, columns))
        case.op("less", case.op("add", x, wide), wide)
        assert check_case(case).source.count("store_f32x4") == vectors

    def test_strided_and_backward_reads(self) -> None:
        case = Case()
        x = case.input(plain(dtypes.float32, (40, 64)))
        part = case.hidden("slice", x, starts=(39, 63), stops=(-1, -1), steps=(-2, -2))
        y = case.input(plain(dtypes.float32, (20, 32)))
        case.op("add", part, y)
        check_case(case)

    @by_name("shift", [4, 8, 16, 20])
    def test_buffers_that_begin_anywhere(self, shift: int) -> None:
        case = adds("f32", (64,), (64,))
        made = check_case(case, shifts=[shift, 16])
        assert made.source.count("load_f32x4") == 1 + (shift % 16 == 0)

    def test_in_place(self) -> None:
        case = adds("f32", (101,), (101,))
        wanted = interpret(case.graph(), case.inputs)[0]
        made = run_of(case, in_place=((0, 0),))
        pointers = [p for p in made.launches[0].kernel.parameters if p.kind == "pointer"]
        assert len(pointers) == 3
        assert made.launches[0].args[0] == made.launches[0].args[2]
        check("sum", made.run()[0], wanted)

    def test_positions(self) -> None:
        for dtype in (dtypes.int64, dtypes.float32, dtypes.uint8):
            case = Case()
            iota = case.hidden("iota", shape=(7, 12), axis=1, dtype=dtype)
            case.op("multiply", iota, case.input(plain(dtype, (7, 12))))
            check_case(case)

    @by_name("index", [np.int64, np.int8, np.uint8])
    def test_reads_through_indices(self, index: Any) -> None:
        case = self._picks(index)
        source = check_case(case).source
        assert source.count("load_f32x4") == 2  # rows that an index picks are read by vectors

    def test_an_index_out_of_bounds_touches_no_memory(self) -> None:
        case = self._picks(np.int64)
        made = run_of(case)
        case.inputs[1][:] = [10**15, -(10**15)] * 15
        NestRun(made.op, case.inputs).run()

    @by_name("index", ["i64", "u8"])
    def test_an_index_for_each_element(self, index: str) -> None:
        """Also of a nest that is walked by vectors: the index moves in its last loop."""
        rng = np.random.default_rng(1)
        table, rows = plain(dtypes.float32, (200, 8)), np.arange(8)
        columns = rng.integers(0, 200, 64).astype(as_dtype(index).numpy)
        if index == "i64":
            columns[::3] -= 200
        added = aligned(8 * 64 * 4).view(np.float32).reshape(8, 64)
        added[:] = plain(dtypes.float32, (8, 64), 2)
        nest = Nest(
            "picked",
            (8, 64),
            (False, False),
            (
                Access(1, index, 0, (0, 1)),
                Access(0, "f32", 0, (1, 0), ((0, 8, 200),)),
                Access(2, "f32", 0, (64, 1)),
            ),
            (Statement("add", "f32", (("load", 1), ("load", 2)), "f32"),),
            (Store(0, "f32", ("value", 0), None, (64, 1)),),
        )
        names = [Builder().add_arg(TensorType(dtypes.float32, ())) for _ in range(4)]
        (launch,) = plain_launches(nest, [Address(names[3])], [Address(v) for v in names[:3]])
        assert "load_f32x4(in2" in launch.kernel.source
        out = aligned(8 * 64 * 4).view(np.float32).reshape(8, 64)
        held = dict(zip(names, (table, columns, added, out), strict=True))
        args = [held[a.value] if isinstance(a, Address) else a for a in launch.args]
        wanted = table.T[rows[:, None], columns.astype(np.int64)[None, :]] + added
        lanes(launch, args)
        check("picked", out, wanted)

    def test_a_fold_of_rows_that_indices_pick(self) -> None:
        case = self._picks(np.int64)
        case.op(
            "sum", case.hidden("take", *case.builder.args[:2], axis=0), axes=(1,), keepdims=False
        )
        graph = fuse(case.graph())
        wanted = interpret(case.graph(), case.inputs)
        for a, b in zip(run(graph, case.inputs, lanes), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)

    def _picks(self, index: Any) -> Case:
        rng = np.random.default_rng(0)
        case, kind = Case(), as_dtype(index)
        low = -100 if kind.kind == "int" else 0
        table = case.input(plain(dtypes.float32, (5000, 64)))
        rows = case.input(rng.integers(low, 100, (30,)).astype(index))
        picked = case.hidden("take", table, rows, axis=0)
        case.op("add", picked, case.input(plain(dtypes.float32, (30, 64))))
        return case

    def test_a_grid_has_a_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("weft.codegen.cuda.nests.plain_nests.MOST_BLOCKS", 2)
        made = check_case(adds("f32", (5003,), (5003,)))
        assert made.launches[0].blocks == 2

    def test_many_statements_are_not_repeated_too_often(self) -> None:
        case = Case()
        x = case.input(plain(dtypes.uint8, (64,)))
        for k in range(60):
            x = (case.op if k == 59 else case.hidden)(("add", "bitwise_xor")[k % 2], x, x)
        assert "load_" not in check_case(case).source


class TestIndices:
    def test_u32_where_it_is_enough(self) -> None:
        assert index_dtype(2**31 - 1, 5) == "u32"
        assert index_dtype(5, 2**31) == "i64"
        assert index_of(run_of(adds("u8", (4, 5), (5,))).nest) == "u32"

    def test_large_nests(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The other variant: sizes beyond 2**31 cannot be emulated, so the limit is moved."""
        monkeypatch.setattr(writer, "MANY", 100)
        monkeypatch.setattr("weft.codegen.cuda.nests.body.MANY", 100)
        for case in (
            adds("f32", (33, 64), (64,), (33, 1)),
            adds("u8", (1037,), (1037,)),
            turned(),
        ):
            made = check_case(case)
            source = made.source
            assert made.names[0].endswith("_i64")
            assert "u32(" not in source
            assert "i64(" in source

    def test_sizes_are_arguments(self) -> None:
        keys = {
            tuple(launch.kernel.key for launch in run_of(adds("f32", shape, shape)).launches)
            for shape in ((64,), (1000,), (7, 9))
        }
        assert len(keys) == 1

    def test_nothing_to_write(self) -> None:
        assert run_of(adds("f32", (0, 64), (64,))).launches == []


def turned() -> Case:
    case = Case()
    part = case.hidden("permute_dims", case.input(plain(dtypes.float32, (40, 33))), axes=(1, 0))
    case.op("add", part, case.input(plain(dtypes.float32, (33, 40))))
    return case


class TestText:
    def test_kernels_to_read(self, update: bool) -> None:
        """`pytest --update` rewrites tests/cases/cuda_nests.txt."""
        case = Case()
        x, w = case.input(plain(dtypes.float32, (33, 64))), case.input(plain(dtypes.float32, (64,)))
        half = case.hidden("constant", value=ConstArray(np.float32(0.5)))
        wide = [case.hidden("broadcast_to", v, shape=(33, 64)) for v in (w, half)]
        case.op("tanh", case.hidden("multiply", case.hidden("multiply", x, wide[0]), wide[1]))
        total = Case()
        squares = total.hidden("square", total.input(plain(dtypes.float16, (5, 40))))
        total.op("sum", squares, axes=(1,), keepdims=False)
        text = "\n\n".join(run_of(c).source for c in (case, total, turned()))
        if update:
            GOLDEN.write_text(text, encoding="utf-8")
        assert GOLDEN.read_text(encoding="utf-8") == text

    def test_the_same_text_every_time(self) -> None:
        assert run_of(turned()).source == run_of(turned()).source

    def test_names_are_never_those_of_the_vocabulary(self) -> None:
        s = Source("range")
        assert s.name == "range_kernel"
        assert s.fresh("exp_f32") != "exp_f32"
        assert s.fresh("cuda") != "cuda"
        assert s.fresh("lambda").isidentifier()
        assert s.fresh("2x y").isidentifier()
        assert s.fresh("a") != s.fresh("a")

    def test_complex_numbers_run_on_the_cpu_only(self) -> None:
        with pytest.raises(UnsupportedError, match="complex numbers"):
            run_of(adds("c64", (4,), (4,)))


@needs_toolchain
def test_compiled() -> None:
    """Vectors are single accesses, nothing is divided, nothing is in doubles."""
    made = run_of(adds("f32", (33, 64), (64,), (33, 1)))
    ptx = emit_ptx(made.launches[0].kernel, (9, 0))
    assert len(re.findall(r"ld\.global(?:\.nc)?\.v4", ptx)) == 2
    assert len(re.findall(r"st\.global\.v4", ptx)) == 1
    assert not re.search(r"\.f64|div\.|rem\.", ptx)


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**31 - 1))
@examples(200)
@example(1, 2**31 - 1)
@example(2**31 - 1, 2**31 - 1)
@example(2**30 + 1, 2**31 - 1)
@example(641, 641 * 3340530 - 1)
def test_a_multiplication_and_a_shift_divide(divisor: int, position: int) -> None:
    """As the kernel does it, in 32 bits; beside a multiple of the divisor, where errors show."""
    (packed,) = multiplier(divisor)
    by, shift = packed % 2**32, packed >> 32
    multiple = position // divisor * divisor
    for a in (position, multiple, max(multiple - 1, 0)):
        assert ((2 * a) % 2**32 * by >> 32) >> shift == a // divisor


def test_the_emulator_divides_so_too() -> None:
    """Positions of three loops from one number."""
    s = Source("positions")
    names = [s.number(f"n{k}", n) for k, n in enumerate((5, 7, 6))]
    i = s.let(s.thread, "i")
    result = Builder().add_arg(TensorType(dtypes.uint32, (210, 3)))
    out = s.pointer("out", "u32", Address(result))
    found = s.split(i, names)
    for k, index in enumerate(found):
        s.line(f"{out}[{s.add(s.mul(i, s.const(3)), s.const(k))}] = {index}")
    launch = s.launch(1)
    assert "div_u32" not in launch.kernel.source
    memory = aligned(210 * 3 * 4).view(np.uint32)
    args = [a if isinstance(a, int) else memory for a in launch.args]
    emulate(launch.kernel, 1, 210, args)
    np.testing.assert_array_equal(memory.reshape(-1, 3), np.array([*np.ndindex(5, 7, 6)]))
