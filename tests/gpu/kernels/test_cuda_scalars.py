"""Elementwise operations as kernel source: every op at every dtype, awkward values, in the
emulator against the interpreter; and all of them compiled."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from compiled_checks import ELEMENTWISE, Case, check, operands, plain
from cuda_graphs import Runner, lanes, run
from cuda_on_cpu import native
from cuda_toolchain import TARGETS, needs_toolchain
from elementwise_checks import bitcasts, casts, check_bitcasts, check_elementwise, domain, ops_at

import weft as wf
from weft.codegen.cuda.cubins.compile import compile_kernel, emit_ptx
from weft.codegen.cuda.source.dtypes import DTYPES, literal, load, register_dtype, stored
from weft.codegen.cuda.source.elementwise import expression, fold_expression, identity, supported
from weft.codegen.cuda.source.kernel import CudaKernel
from weft.codegen.cuda.source.writer import Source
from weft.codegen.scalar.elementwise import result_dtype
from weft.codegen.scalar.elementwise import supported as supported_on_cpu
from weft.ir import dtypes
from weft.ir.dtypes import DType, as_dtype
from weft.ir.errors import UnsupportedError
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops import OPS
from weft.passes.fusion.fuse import fuse

Array = np.ndarray[Any, Any]
KINDS = [as_dtype(d) for d in DTYPES]
by_name = pytest.mark.parametrize


def on_device(case: Case, runner: Runner = lanes) -> list[tuple[str, Array, Array]]:
    """(label, emulated, interpreted) for each result."""
    graph = case.graph()
    wanted = interpret(graph, case.inputs)
    return list(zip(case.labels, run(fuse(graph), case.inputs, runner), wanted, strict=True))


class TestMeaning:
    """What the source does, in the emulator, is what the interpreter does."""

    @by_name("dtype", KINDS, ids=str)
    def test_every_op(self, dtype: DType) -> None:
        case = Case()
        for k, op in enumerate(ops_at(dtype)):
            arity = OPS[op].arity or 1
            arrays = domain(op, operands(dtype, arity, 400, seed=k))
            if op == "fma" and dtype is dtypes.float64:
                # no product near the limits of f64: what the emulator has is not a GPU's there
                arrays = [plain(dtype, (400,), seed) for seed in range(3)]
            case.op(op, *(case.input(x) for x in arrays))
        for op, got, wanted in on_device(case):
            check_elementwise(op, dtype, got, wanted)

    @by_name("source", KINDS, ids=str)
    def test_astype(self, source: DType) -> None:
        for label, got, wanted in on_device(casts(source, KINDS)):
            check(label, got, wanted)

    @by_name("source", [d for d in KINDS if d.is_numeric], ids=str)
    def test_bitcast(self, source: DType) -> None:
        case = bitcasts(source, [d for d in KINDS if d.is_numeric])
        check_bitcasts(source, case, on_device(case))

    @by_name("dtype", KINDS, ids=str)
    def test_where(self, dtype: DType) -> None:
        case = Case()
        a, b = operands(dtype, 2, 61)
        chosen = case.input(plain(dtypes.bool_, (61,)))
        case.op("where", chosen, case.input(a), case.input(b))
        (row,) = on_device(case)
        check(*row)

    def test_a_double_becomes_a_half_in_one_rounding(self) -> None:
        # to f32 first, 1 + 2**-11 would be a tie, and go to even
        x = np.array([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11, -1 - 2.0**-11 - 2.0**-40])
        case = Case()
        case.op("astype", case.input(x), dtype=dtypes.float16)
        (row,) = on_device(case)
        check(*row)
        assert row[1].tolist() == [1 + 2.0**-10, 1.0, -1 - 2.0**-10]

    @by_name("dtype", [dtypes.float32, dtypes.float64, dtypes.float16], ids=str)
    def test_erfinv_of_a_zero_keeps_its_sign(self, dtype: DType) -> None:
        x = np.array([0.0, -0.0, 0.5, -1.0], dtype.numpy)
        case = Case()
        case.op("erfinv", case.input(x))
        ((_, got, _),) = on_device(case)
        assert np.signbit(got).tolist() == [False, True, False, True]
        assert np.signbit(wf.compile(wf.erfinv)(x)).tolist() == [False, True, False, True]
        assert got.tolist()[3] == -np.inf

    @by_name("source", [dtypes.float32, dtypes.float64, dtypes.float16], ids=str)
    def test_floats_beyond_the_range_of_integers_are_defined(self, source: DType) -> None:
        values = np.array(
            [np.nan, np.inf, -np.inf, 6e4, -6e4, 2.0**31, 2.0**63, 2.0**64, -1.5, 2.5]
        )
        case = Case()
        with np.errstate(over="ignore"):
            x = case.input(values.astype(source.numpy))
        for target in (dtypes.int32, dtypes.int64, dtypes.uint64, dtypes.int8, dtypes.uint32):
            case.op("astype", x, dtype=target)
        made = run(fuse(case.graph()), case.inputs, lanes)
        with np.errstate(all="ignore"):  # of NumPy's casts, which differ between machines
            on_cpu = [got for _, got, _ in case.run()]
        for got, wanted in zip(made, on_cpu, strict=True):
            assert got.tolist() == wanted.tolist()
        signed, wide, unsigned, *_ = made
        assert signed.tolist()[:3] == [0, 2**31 - 1, -(2**31)]
        assert signed.tolist()[-2:] == [-1, 2]
        assert wide.tolist()[:3] == [0, 2**63 - 1, -(2**63)]
        assert unsigned.tolist()[:3] == [0, 2**64 - 1, 0]

    @by_name("dtype", ["f32", "f64", "f16", "i8", "u64", "bool"])
    def test_constants(self, dtype: str) -> None:
        held = as_dtype(dtype).numpy
        values = operands(as_dtype(dtype), 1, 40)[0]
        from weft.codegen.cuda.emulator import run as emulate

        s = Source("constants")
        out = s.pointer("out", dtype, 0)
        for k, value in enumerate(values.tolist()):
            s.line(f"{out}[{s.const(k)}] = {stored(dtype, literal(dtype, value))}")
        memory = np.zeros(values.shape, held)
        emulate(s.kernel(), 1, 1, [memory.view(np.uint8)])
        check("constants", memory, values)


class TestTable:
    def test_what_the_cpu_has_but_complex_numbers(self) -> None:
        for op, dtype, target in itertools.product(ELEMENTWISE, DTYPES, DTYPES):
            attrs = {"dtype": target}
            if op not in ("astype", "bitcast"):
                target = result_dtype(op, dtype, attrs)
            assert supported(op, dtype, target) == supported_on_cpu(op, dtype, attrs), (op, dtype)

    def test_complex_numbers_are_refused(self) -> None:
        with pytest.raises(UnsupportedError, match="op 'add' on c64 -> c64 has no GPU code"):
            expression("add", "c64", "c64", ["a", "b"])

    @by_name("dtype", DTYPES)
    def test_identities(self, dtype: str) -> None:
        """Folding the identity with a value gives the value."""
        from weft.codegen.cuda.emulator import run as emulate

        kept = register_dtype(dtype)
        folds = ("all", "any") if dtype == "bool" else ("sum", "prod", "max", "min")
        values = operands(as_dtype(kept), 1, 60)[0]
        for reduction in folds:
            s = Source("folded")
            in0, out = s.pointer("in0", kept, 0), s.pointer("out", kept, 0)
            x = s.let(load(kept, in0, s.thread))
            start = s.let(identity(reduction, kept))
            total = s.let(fold_expression(reduction, kept, start, x))
            s.line(f"{out}[{s.thread}] = {stored(kept, total)}")
            memory = np.zeros_like(values)
            raw = [a.view(np.uint8) for a in (values, memory)]
            emulate(s.kernel(), 1, values.size, raw)
            zero = np.zeros((), values.dtype)  # of two zeros either may come out
            pair = (memory, values) if dtype == "bool" else (memory + zero, values + zero)
            check(reduction, *pair)

    def test_device_functions_come_once_and_in_order(self) -> None:
        s = Source("twice")
        for k in range(2):
            s.let(expression("digamma", "f32", "f32", [literal("f32", k)]))
            s.let(expression("remainder", "i16", "i16", ["i16(7)", "i16(3)"]))
        source = s.kernel().source
        heads = [line.split("(")[0] for line in source.splitlines() if line.startswith("def ")]
        assert heads == [
            "def wf_digamma_f32",
            "def wf_remainder_i16",
            "def twice",
        ]


def every_op(dtype: str, targets: Sequence[str] = ()) -> CudaKernel:
    """A kernel with every op at a dtype in it, or a cast to every one of the targets."""
    s = Source(f"every_{dtype}")
    pointers = [s.pointer(f"in{k}", dtype, 0) for k in range(3)]
    condition = s.pointer("condition", "bool", 0)
    args = [s.let(load(dtype, p, s.thread), "x") for p in pointers]
    chosen = s.let(load("bool", condition, s.thread), "chosen")
    casts = [(op, t) for t in targets for op in ("astype", "bitcast")]
    others = [op for op in ELEMENTWISE if op not in ("astype", "bitcast")]
    for op, target in casts or [(op, result_dtype(op, dtype, {})) for op in others]:
        if not supported(op, dtype, target):
            continue
        arity = OPS[op].arity or 1
        given = [chosen, *args[:2]] if op == "where" else args[:arity]
        value = s.let(expression(op, dtype, target, given), "y")
        out = s.pointer(f"{op}_{target}", target, 0)
        s.line(f"{out}[{s.thread}] = {stored(target, value)}")
    return s.kernel()


@needs_toolchain
class TestCompiled:
    @pytest.mark.slow
    @by_name("cc", TARGETS[::3])
    @by_name("dtype", DTYPES)
    def test_every_op(self, dtype: str, cc: tuple[int, int]) -> None:
        cubin = compile_kernel(every_op(dtype), cc)
        assert cubin.report.spills == 0

    @pytest.mark.slow
    @by_name("dtype", DTYPES)
    def test_every_cast(self, dtype: str) -> None:
        for cc in TARGETS[2:3]:
            compile_kernel(every_op(dtype, DTYPES), cc)

    @pytest.mark.slow
    @by_name("dtype", [dtypes.int64, dtypes.int8], ids=str)
    def test_what_llvm_makes_of_integers(self, dtype: DType) -> None:
        """Carried out on the CPU: undefined overflow would show."""
        case = Case()
        for k, op in enumerate(ops_at(dtype)):
            case.op(op, *map(case.input, operands(dtype, OPS[op].arity or 1, 400, seed=k)))
        for op, got, wanted in on_device(case, native):
            check_elementwise(op, dtype, got, wanted)

    @by_name("dtype", ["f32", "f16", "i32", "u8"])
    def test_nothing_is_done_in_doubles_by_accident(self, dtype: str) -> None:
        s = Source("single")
        pointer, out = s.pointer("in0", dtype, 0), s.pointer("out", dtype, 0)
        x = s.let(load(dtype, pointer, s.thread))
        ops = ("maximum", "add", "multiply", "remainder", "floor_divide", "power")
        for op in (*ops, "divide", "sigmoid", "rsqrt", "exp", "logaddexp"):
            if supported(op, dtype, dtype):
                arity = OPS[op].arity or 1
                x = s.let(expression(op, dtype, dtype, [x] * arity))
        s.line(f"{out}[{s.thread}] = {stored(dtype, x)}")
        ptx = emit_ptx(s.kernel(), (9, 0))
        assert ".f64" not in ptx
        assert "div.s64" not in ptx
        assert "div.u64" not in ptx
