"""Constants in the text form: every bit survives, and small ones are readable."""

from typing import Any

import numpy as np
import pytest
import shares
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.ir.dtypes import ALL, DType, bfloat16, float16, float64, string
from weft.ir.graph import Graph
from weft.ir.ops.builder import Builder
from weft.ir.spec import ConstArray
from weft.ir.text.lexer import format_float_bits
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import format_attr, print_graph


def constant_graph(array: np.ndarray[Any, Any]) -> Graph:
    builder = Builder()
    value = builder.emit1("constant", value=ConstArray(array), locations=())
    return builder.graph("g", (), [value])


def through_text(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    graph = parse_graph(print_graph(constant_graph(array)))
    value = graph.ops[0].attrs["value"]
    assert isinstance(value, ConstArray)
    return value.array


@pytest.mark.share(4)
@pytest.mark.parametrize("dtype", [d for d in ALL if d is not string], ids=str)
@given(data=st.data())
@settings(max_examples=40)
def test_constants_are_bit_exact(dtype: DType, data: st.DataObject) -> None:
    """Any bits: NaN payloads, signalling NaNs, -0.0, subnormals; readable and base64 sizes."""
    shape = data.draw(st.sampled_from([(), (1,), (4,), (2, 3), (0, 2), (33,), (5, 7), (2, 0)]))
    size = int(np.prod(shape)) * dtype.itemsize
    raw = data.draw(st.binary(min_size=size, max_size=size))
    if dtype.kind == "bool":
        raw = bytes(b & 1 for b in raw)
    array = np.frombuffer(raw, dtype.numpy).reshape(shape)
    back = through_text(array)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == raw


@given(st.lists(st.binary(), max_size=40))
def test_string_constants_are_exact(items: list[bytes]) -> None:
    array = np.empty(len(items), object)
    array[:] = items
    assert through_text(array).tolist() == items


@pytest.mark.parametrize("eighth", shares.every(8, range(8)))
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_all_16_bit_floats(dtype: DType, eighth: int) -> None:
    """Every bit pattern prints as a literal that reads back as the same bits."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    for part in np.split(bits, 2048)[eighth::8]:  # 32 elements print one by one
        array = part.view(dtype.numpy)
        assert through_text(array).tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.float32(0.1), "f32[] 0.1"),
        (np.float16(65504), "f16[] 65504.0"),
        (np.float32(1e-45), "f32[] 1e-45"),
        (np.float64(-0.0), "f64[] -0.0"),
        (np.array([np.nan, -np.nan, np.inf], np.float32), "f32[3] [nan, -nan, inf]"),
        (np.uint32(0x7FC00001).view(np.float32), "f32[] bits(0x7fc00001)"),
        (np.array([3.14, 1 / 3]).astype(bfloat16.numpy), "bf16[2] [3.14, 0.334]"),
        (np.array([1 - 2j], np.complex64), "c64[1] [(1.0, -2.0)]"),
        (np.array([[True, False]]), "bool[1,2] [[true, false]]"),
        (np.int8(-128), "i8[] -128"),
        (np.uint64(2**64 - 1), "u64[] 18446744073709551615"),
        (np.zeros((2, 0), np.int32), "i32[2,0] []"),
        (np.array(b'a\x00\xff"\n', object), 'string[] b"a\\x00\\xff\\"\\n"'),
        (np.array(["é\u200b".encode()], object), 'string[1] [b"\\xc3\\xa9\\xe2\\x80\\x8b"]'),
        (np.ones(33, np.float32), "f32[33] splat(1.0)"),
        (np.full((9, 9), -0.0), "f64[9,9] splat(-0.0)"),
        (
            np.arange(36, dtype=np.uint8),
            'u8[36] base64("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIj")',
        ),
    ],
)
def test_constants_are_readable(array: Any, text: str) -> None:
    assert format_attr(ConstArray(np.asarray(array))) == text


def test_zeros_of_both_signs_are_no_splat() -> None:
    array = np.zeros(40, np.float32)
    array[17] = -0.0
    assert "base64" in format_attr(ConstArray(array))
    assert through_text(array).tobytes() == array.tobytes()


@pytest.mark.parametrize("value", [0.1, -0.0, float("nan"), float("-inf"), 1e300, 5e-324, 1.0])
def test_float_bits_in_f64(value: float) -> None:
    bits = int(np.float64(value).view(np.uint64))
    text = format_float_bits(bits, float64)
    assert text == repr(value)
