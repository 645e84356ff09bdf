"""Constant operands of products and convolutions, packed once when a plan is made: the same bits as
operands that are packed in each call, one copy for all plans, none of it in files."""

from __future__ import annotations

import gc
import json
import re
import weakref
from typing import Any

import numpy as np
import pytest
from native_runs import compiled, compiled_for, packed_in

import weft as wf
from weft.codegen.llvm.target import host_isas, using
from weft.codegen.tiles.micro_kernel import tile_of
from weft.codegen.tiles.panels import Panels, packed_again, packed_array

Array = np.ndarray[Any, Any]
ISAS = ["native", *host_isas()]
DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16"]


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    kind = getattr(wf, dtype).numpy
    if np.issubdtype(kind, np.integer):
        ends = np.iinfo(kind)
        return rng.integers(ends.min, ends.max, shape, dtype=kind, endpoint=True)
    return np.asarray(rng.standard_normal(shape), kind)


@pytest.mark.share(16)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_have_the_bits_of_operands(isa: str, dtype: str, transposed: bool) -> None:
    """Rows of less than a tile and more, ends of k and of panels."""
    rng = np.random.default_rng(1)
    wide = {"preferred_element_type": wf.int32} if "int" in dtype else {}

    def product(x: Any, w: Any) -> Any:
        w = wf.transpose(wf.asarray(w)) if transposed else wf.asarray(w)
        return wf.matmul(x, w, **wide)

    some = 0
    for m, k, n in ((49, 512, 96), (300, 257, 97), (9, 33, 200), (2, 70, 131)):
        x, w = draw(rng, (m, k), dtype), draw(rng, (n, k) if transposed else (k, n), dtype)
        with using(isa):
            (wanted,) = compiled(product, x, w).run([x, w])
            step = compiled(lambda x, w=w: product(x, w), x)
            (made,) = step.run([x])
            some += len(packed_in(step))
        np.testing.assert_array_equal(made, wanted)
    assert some >= 2


@pytest.mark.share(12)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES[:4])
@pytest.mark.parametrize(("groups", "strides"), [(1, 1), (1, 2), (4, 1)])
def test_convolutions_have_the_bits_of_operands(
    isa: str, dtype: str, groups: int, strides: int
) -> None:
    rng = np.random.default_rng(2)
    x = draw(rng, (2, 9, 11, 24), dtype)
    w, b = draw(rng, (3, 3, 24 // groups, 100), dtype), draw(rng, (100,), dtype)

    def layer(x: Any, w: Any) -> Any:
        made = wf.nn.conv2d(x, wf.asarray(w), strides=strides, groups=groups, padding="SAME")
        return wf.nn.relu(made + wf.asarray(b))

    with using(isa):
        (wanted,) = compiled(layer, x, w).run([x, w])
        step = compiled(lambda x: layer(x, w), x)
        (made,) = step.run([x])
    np.testing.assert_array_equal(made, wanted)
    assert len(packed_in(step)) == 1
    assert all("pack" not in key for key in step.plan.table.kernels)


def test_gradients_of_the_input_have_the_bits_of_operands() -> None:
    """`conv_input` reads the kernel turned, the product's gradient its transpose."""
    rng = np.random.default_rng(3)
    x, w = draw(rng, (2, 8, 8, 16), "float32"), draw(rng, (3, 3, 16, 40), "float32")
    v = draw(rng, (8 * 8 * 40, 60), "float32")

    def loss(x: Any, w: Any, v: Any) -> Any:
        y = wf.nn.conv2d(x, wf.asarray(w), padding="SAME")
        return wf.sum(wf.square(wf.matmul(wf.reshape(y, (2, -1)), wf.asarray(v))))

    def gradient(x: Any, w: Any, v: Any) -> Any:
        return wf.grad(loss)(x, w, v)

    (wanted,) = compiled(gradient, x, w, v).run([x, w, v])
    step = compiled(lambda x: gradient(x, w, v), x)
    (made,) = step.run([x])
    assert len(packed_in(step)) >= 3
    np.testing.assert_array_equal(made, wanted)


def test_plans_share_what_is_packed_and_it_goes_with_them() -> None:
    """Of one graph, as that of a bundle for batches of several sizes."""
    w = draw(np.random.default_rng(4), (300, 200), "float32")
    rows = wf.TensorType(wf.float32, (None, 300))
    given = [np.ones((m, 300), np.float32) for m in (32, 64)]
    f = wf.compile(lambda x: wf.matmul(x, wf.asarray(w)), input_signature=[rows])
    graph = f.trace(given[0])
    held = compiled_for(graph, *(x.shape for x in given))
    (one,), (two,) = map(packed_in, held)
    assert one is two
    assert one.ctypes.data % 64 == 0
    assert not one.flags.writeable
    for step, x in zip(held, given, strict=True):
        np.testing.assert_allclose(step.run([x])[0], x @ w, rtol=1e-3, atol=1e-3)
    gone = weakref.ref(one)
    del one, two, held, step, graph, f
    gc.collect()
    assert gone() is None


def test_only_what_kernels_read_is_kept() -> None:
    """The original of a packed constant is none of the plan's arrays, unless a kernel reads it."""
    rng = np.random.default_rng(5)
    w, x = draw(rng, (128, 150), "float32"), draw(rng, (40, 128), "float32")
    columns = tile_of("f32").columns
    panels = 128 * columns * -(-150 // columns)
    assert panels != w.size
    step = compiled(lambda x: wf.matmul(x, wf.asarray(w)), x)
    assert [a.size for a in step.plan.table.arrays if a.size > 1000] == [panels]
    both = compiled(lambda x: (wf.matmul(x, wf.asarray(w)), wf.asarray(w) * x[0, 0]), x)
    sizes = sorted(a.size for a in both.plan.table.arrays if a.size > 1000)
    assert sizes == [w.size, panels]
    np.testing.assert_allclose(both.run([x])[1], w * x[0, 0], rtol=1e-6)


def test_explain_says_what_is_packed() -> None:
    w = draw(np.random.default_rng(7), (100, 300), "float32")
    f = wf.compile(lambda x: wf.matmul(x, wf.asarray(w)), target="x86-64-v3")
    text = str(f.explain(np.ones((9, 100), np.float32)))
    said = re.search(r"constants packed when planned\n  kernel 1: (.*)\n", text)
    assert said is not None
    assert said[1] == "f32[100,300] as panels of 16 columns, 121,600 bytes"


def test_fields_are_what_json_keeps() -> None:
    source = np.arange(80, dtype=np.float32)
    layout = Panels(3, (1, 2, 5, 7), (0, 35, 7, 1), 16, "f32")
    fields = json.loads(json.dumps(layout.fields()))
    assert packed_again(source, fields) is packed_array(source, layout)


def test_layout_by_hand() -> None:
    """[group, panel, tap, depth, column]; of four neighbours in one element each plus 128."""
    source = np.arange(-15, 15, dtype=np.int8).reshape(5, 6)
    layout = Panels(0, (1, 1, 5, 6), (0, 0, 6, 1), 4, "i32", 4, flipped=True)
    packed = packed_array(source, layout)
    assert packed is packed_array(source, layout)
    parts = packed.view(np.uint8).reshape(2, 2, 4, 4)  # panel, step, column, neighbour
    for panel in range(2):
        for step in range(2):
            for column in range(4):
                for d in range(4):
                    k, n = 4 * step + d, 4 * panel + column
                    inside = k < 5 and n < 6
                    wanted = int(source[k, n]) + 128 if inside else 128
                    assert parts[panel, step, column, d] == wanted


@pytest.mark.parametrize("isa", ISAS)
def test_a_constant_that_is_multiplied_element_by_element_is_not_packed(isa: str) -> None:
    with using(isa):
        tile = tile_of("f32")
        w = np.ones((tile.columns, tile.columns), np.float32)
        step = compiled(lambda x: wf.matmul(x, wf.asarray(w)), w[:1])
    assert packed_in(step) == []
