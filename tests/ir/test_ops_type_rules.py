"""Elementwise rows: which dtypes and shapes fit and what errors say; where, astype, bitcast."""

import math
from typing import Any

import numpy as np
import pytest

from weft.ir import dtypes
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import DType
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.interpreter.evaluate import evaluate_op
from weft.ir.ops import OPS
from weft.ir.ops.elementwise import BINARY, UNARY
from weft.ir.spec import OpSpec
from weft.ir.types import TensorType, tensor_type

pytestmark = pytest.mark.filterwarnings("error")


def allowed(name: str, dtype: DType) -> bool:
    """Whether the type rule takes operands of this dtype."""
    types = [TensorType(dtype, (3,))] * OPS[name].arity
    try:
        OPS[name].infer(types, {}, ())
    except TypeRuleError:
        return False
    return True


@pytest.mark.parametrize("spec", [*UNARY, *BINARY], ids=lambda s: s.name)
def test_dtypes_outside_the_rule_are_refused_with_a_hint(spec: OpSpec) -> None:
    for dtype in dtypes.ALL:
        if not allowed(spec.name, dtype):
            types = [tensor_type(dtype, 2, "b")] * spec.arity
            with pytest.raises(TypeRuleError) as error:
                spec.infer(types, {}, ())
            assert f"op '{spec.name}'" in error.value.what
            assert str(types[0]) in error.value.what
            assert error.value.hint


def test_which_dtypes_an_op_takes() -> None:
    def taken(name: str) -> str:
        return "".join(d.short + " " for d in dtypes.ALL if allowed(name, d)).strip()

    ints, floats, complexes = "i8 i16 i32 i64 u8 u16 u32 u64", "f16 bf16 f32 f64", "c64 c128"
    assert taken("sin") == taken("divide") == f"{floats} {complexes}"
    assert taken("add") == taken("abs") == taken("power") == f"{ints} {floats} {complexes}"
    assert taken("floor_divide") == taken("maximum") == taken("ceil") == f"{ints} {floats}"
    assert taken("erf") == taken("hypot") == taken("signbit") == floats
    assert taken("less") == f"bool {ints} {floats}"
    assert taken("equal") == f"bool {ints} {floats} {complexes} string"
    assert taken("bitwise_and") == f"bool {ints}"
    assert taken("bitwise_left_shift") == ints
    assert taken("logical_or") == "bool"


@pytest.mark.parametrize(
    ("name", "given", "hint"),
    [
        ("add", dtypes.bool_, "wf.logical_or"),
        ("negative", dtypes.bool_, "wf.logical_not"),
        ("sin", dtypes.int32, "wf.astype(x, wf.float32)"),
        ("less", dtypes.complex64, "wf.abs"),
        ("logical_and", dtypes.float32, "x != 0"),
        ("bitwise_or", dtypes.float32, "wf.int64"),
        ("multiply", dtypes.string, "wf.where"),
    ],
)
def test_hints_name_the_way_out(name: str, given: DType, hint: str) -> None:
    with pytest.raises(TypeRuleError) as error:
        OPS[name].infer([TensorType(given, (2,))] * OPS[name].arity, {}, ())
    assert hint in error.value.hint


def test_operands_must_agree() -> None:
    f32, f64 = tensor_type(dtypes.float32, 2), tensor_type(dtypes.float64, 2)
    with pytest.raises(TypeRuleError, match=r"one dtype, got \(f32\[2\], f64\[2\]\)"):
        OPS["add"].infer([f32, f64], {}, ())
    with pytest.raises(
        ShapeError, match=r"(?s)one shape, got \(f32\[2\], f32\[1\]\).*broadcast_to"
    ):
        OPS["add"].infer([f32, tensor_type(dtypes.float32, 1)], {}, ())
    with pytest.raises(ShapeError):
        OPS["add"].infer([f32, tensor_type(dtypes.float32, 1, 2)], {}, ())
    with pytest.raises(TypeRuleError, match="takes bool operands"):
        OPS["where"].infer([f32, f32, f32], {}, ())


def test_the_best_known_dimension_wins() -> None:
    b = SymbolicDim.symbol("b")
    operands = [
        tensor_type(dtypes.float32, None, "b", None),
        tensor_type(dtypes.float32, "b", 3, None),
    ]
    for order in (operands, operands[::-1]):
        (result,) = OPS["multiply"].infer(order, {}, ())
        assert result.shape == (b, 3, None)


def test_strings_compare_and_are_chosen() -> None:
    x, y = np.array([b"a", b"b"], object), np.array([b"a", b"c"], object)
    assert evaluate_op("equal", [x, y])[0].tolist() == [True, False]
    assert evaluate_op("where", [np.array([False, True]), x, y])[0].tolist() == [b"a", b"b"]


@pytest.mark.parametrize(
    "dtype", [d for d in dtypes.ALL if d.kind != "string"], ids=lambda d: d.name
)
def test_where_and_astype_of_every_dtype(dtype: DType) -> None:
    x, y = np.array([1, 0, 3]).astype(dtype.numpy), np.array([0, 1, 2]).astype(dtype.numpy)
    (chosen,) = evaluate_op("where", [np.array([True, False, False]), x, y])
    assert chosen.tolist() == [x[0].item(), y[1].item(), y[2].item()]
    for target in dtypes.ALL:
        if target.kind == "string" or (
            dtype.is_complex and not target.is_complex and target.kind != "bool"
        ):
            with pytest.raises(TypeRuleError, match="op 'astype'"):
                evaluate_op("astype", [x], {"dtype": target})
        else:
            (cast,) = evaluate_op("astype", [x], {"dtype": target})
            wanted = x.astype(bool) if target is dtypes.bool_ else x.astype(np.complex128)
            assert (cast.astype(np.complex128) == wanted.astype(np.complex128)).all()


def test_astype_rounds_as_numpy_and_never_warns() -> None:
    def cast(values: list[Any], source: DType, target: DType) -> list[Any]:
        (out,) = evaluate_op("astype", [np.array(values, source.numpy)], {"dtype": target})
        return out.tolist()

    assert cast([2.9, -2.9, 0.5], dtypes.float32, dtypes.int32) == [2, -2, 0]
    assert cast([300, -1], dtypes.int32, dtypes.uint8) == [44, 255]
    assert cast([math.nan, 0.0, -0.0, 0.1], dtypes.bfloat16, dtypes.bool_) == [
        True,
        False,
        False,
        True,
    ]
    assert cast([1j, 0], dtypes.complex64, dtypes.bool_) == [True, False]
    assert cast([1e30, 1e-30], dtypes.float32, dtypes.float16) == [math.inf, 0]
    assert cast([1 + 2**-11 + 2**-40], dtypes.float64, dtypes.float16) == [1 + 2**-10]
    assert (
        len(cast([math.nan, 1e30], dtypes.float32, dtypes.int8)) == 2
    )  # unspecified, but no warning


def test_bitcast_reads_the_same_bits() -> None:
    x = np.array([1.0, -2.0], np.float32)
    (bits,) = evaluate_op("bitcast", [x], {"dtype": dtypes.uint32})
    assert bits.tolist() == [0x3F800000, 0xC0000000]
    (scalar,) = evaluate_op("bitcast", [np.array(0x3F80, np.int16)], {"dtype": dtypes.bfloat16})
    assert (scalar.shape, float(scalar)) == ((), 1.0)
    with pytest.raises(
        TypeRuleError, match=r"(?s)bits of f32\[2\] as float64.*int32, uint32, float32"
    ):
        evaluate_op("bitcast", [x], {"dtype": dtypes.float64})
    for bad in (dtypes.bool_, dtypes.complex64):
        with pytest.raises(TypeRuleError, match="op 'bitcast'"):
            evaluate_op("bitcast", [np.zeros(2, bad.numpy)], {"dtype": dtypes.uint8})


@pytest.mark.parametrize(
    ("dtype", "shape", "sizes", "message"),
    [
        (dtypes.int32, (4, 2), (), r"indices i64\[n,2\], got i32\[4,2\]"),
        (dtypes.int64, (4, 3), (), r"got i64\[4,3\]"),
        (dtypes.int64, (8,), (), r"got i64\[8\]"),
        (dtypes.int64, (4, 2), ("n",), "names 1 sizes, its results have 2"),
    ],
)
def test_pairs_of_entries_take_indices_of_matrices(
    dtype: DType, shape: tuple[int, ...], sizes: tuple[str, ...], message: str
) -> None:
    right = TensorType(dtypes.int64, (3, 2))
    with pytest.raises(TypeRuleError, match=message):
        OPS["sparse_pairs"].infer([right, TensorType(dtype, shape)], {"sizes": sizes}, ())
    made = OPS["sparse_pairs"].infer([right, right], {"sizes": ("n", "p")}, ())
    assert list(map(str, made)) == ["i64[n,2]", "i64[p]", "i64[p]", "i64[p]"]
