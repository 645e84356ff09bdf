"""Dtypes of ONNX operators: which onnxruntime has, and in which others the result is the same.

`RUNS_IN` is what onnxruntime 1.32 has on CPUs for the newest version of each operator at opset 20
and 23, as its `get_all_opkernel_def` tells (a test compares them); operators that are not in it, or
have all dtypes, move elements. float16 is left alone: onnxruntime converts around what it lacks."""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir.dtypes import DType

_FLOATS = ("f32", "f64")
_NUMBERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", *_FLOATS)
_BASIC = ("f32", "f64", "i32", "i64")
_ORDER = ("i8", "i32", "i64", "u8", "u32", "u64", *_FLOATS)

RUNS_IN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Abs", "Add", "Sub", "Mul", "Div", "Mod"), _NUMBERS),
    **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"), _NUMBERS),
    "Equal": ("bool", *_NUMBERS, "string"),
    "Sign": _NUMBERS,
    "Neg": ("i8", "i16", "i32", "i64", *_FLOATS),
    **dict.fromkeys(("Max", "Min", "Clip"), _ORDER),
    **dict.fromkeys(
        (
            "Ceil",
            "Cos",
            "Exp",
            "Floor",
            "Log",
            "LogSoftmax",
            "Reciprocal",
            "Round",
            "Sigmoid",
            "Sin",
            "Softmax",
            "Sqrt",
            "Tanh",
            "Gemm",
            "LayerNormalization",
            "RMSNormalization",
        ),
        _FLOATS,
    ),
    **dict.fromkeys(
        (
            "Acos",
            "Acosh",
            "Asin",
            "Asinh",
            "Atan",
            "Atanh",
            "Cosh",
            "Sinh",
            "Tan",
            "Erf",
            "Gelu",
            "Elu",
            "LeakyRelu",
            "Softplus",
            "Softsign",
            "Selu",
            "HardSigmoid",
            "Mish",
            "AveragePool",
            "Conv",
            "ConvTranspose",
            "Attention",
        ),
        ("f32",),
    ),
    "Relu": _FLOATS,
    "Pow": _BASIC,
    "CumSum": _BASIC,
    **dict.fromkeys(("ReduceSum", "ReduceProd", "ReduceMean"), _BASIC),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), ("bool", "i8", "u8", *_BASIC)),
    **dict.fromkeys(("ArgMax", "ArgMin"), ("i8", "u8", *_BASIC)),
    "MatMul": _BASIC,  # that of unsigned numbers fails in onnxruntime where there is nothing to add
    "TopK": ("i8", "i16", "u8", *_BASIC),
    "Where": ("i8", "u8", "u32", "string", *_BASIC),
    "MaxPool": ("i8", "u8", *_FLOATS),
    "IsNaN": ("bf16", *_FLOATS),
    "IsInf": ("bf16", *_FLOATS),
    **dict.fromkeys(
        ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"),
        ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"),
    ),
    "BitShift": ("u8", "u16", "u32", "u64"),
    "Range": ("i16", *_BASIC),
    "Pad": ("bool", "i8", "i32", "i64", "u8", "u32", "u64", *_FLOATS),
    "NonZero": ("bool", "u8", "f32", "i32", "i64"),
    "Unique": ("i8", "i64", "string", *_FLOATS),
    "ScatterND": ("i8", "i16", "u8", "u16", "u32", "u64", "bool", "string", *_BASIC),
}

#: For each dtype those with all its numbers, narrower ones first: what is computed there and wraps
#: in the end, wraps to the same.
_WIDER = {
    "bool": ("u8", "i32", "i64", "f32"),
    "i8": ("i16", "i32", "i64", "f32", "f64"),
    "i16": ("i32", "i64", "f32", "f64"),
    "i32": ("i64", "f64"),
    "u8": ("i32", "i64", "f32", "f64"),
    "u16": ("u32", "i32", "i64", "f32", "f64"),
    "u32": ("u64", "i64", "f64"),
    "bf16": ("f32",),
    "f16": ("f32",),
}
#: Of these the result is the same modulo 2**64, so unsigned numbers may be taken for signed ones.
_MODULAR = frozenset({"ReduceSum", "ReduceProd", "CumSum", "Where", "MatMul"})


def working_dtype(kind: str, dtype: DType) -> DType:
    """The dtype in which to compute a node of this operator for operands of `dtype`: itself if
    onnxruntime has that, or nothing wider of the same result does."""
    known = RUNS_IN.get(kind)
    if known is None or dtype.short in known or dtype is dtypes.float16:
        return dtype
    wider = _WIDER.get(dtype.short, ())
    if dtype is dtypes.uint64 and kind in _MODULAR:
        wider = ("i64",)
    for name in wider:
        if name in known:
            return dtypes.as_dtype(name)
    return dtype
