"""`wf.image` against TensorFlow's formulas as loops over pixels, Pillow, colorsys and SciPy: eager
and compiled, gradients, batches, what is refused."""

from __future__ import annotations

import colorsys
import itertools
import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from shares import every
from slope_checks import check, check_gradient

import weft as wf
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError, UnsupportedError

Array = np.ndarray[Any, Any]
I = wf.image  # noqa: E741
RNG = np.random.default_rng(0)


def image(*shape: int, dtype: str = "f8", seed: int = 0) -> Array:
    x = np.random.default_rng([seed, *shape]).random(shape)
    return (x * 255).astype(dtype) if np.dtype(dtype).kind in "iu" else x.astype(dtype)


# --------------------------------------------------------------------------------------- resize
def keys_cubic(x: float, a: float) -> float:
    """R. Keys' kernel as he writes it."""
    x = abs(x)
    if x < 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def mitchell(x: float) -> float:
    """Mitchell and Netravali's table for B = C = 1/3."""
    x = abs(x)
    if x < 1:
        return (7 * x**3 - 12 * x**2 + 16 / 3) / 6
    return (-7 / 3 * x**3 + 12 * x**2 - 20 * x + 32 / 3) / 6 if x < 2 else 0.0


def lanczos(x: float, radius: int) -> float:
    if x == 0:
        return 1.0
    turn = math.pi * x
    return radius * math.sin(turn) * math.sin(turn / radius) / turn**2 if abs(x) < radius else 0.0


KERNELS: dict[str, Callable[[float], float]] = {
    "bilinear": lambda x: max(0.0, 1 - abs(x)),
    "bicubic": lambda x: keys_cubic(x, -0.5),
    "lanczos3": lambda x: lanczos(x, 3),
    "lanczos5": lambda x: lanczos(x, 5),
    "gaussian": lambda x: math.exp(-((x / 0.5) ** 2) / 2) if abs(x) < 1.5 else 0.0,
    "mitchellcubic": mitchell,
}


def row_of(i: int, size: int, wanted: int, method: str, antialias: bool, corners: str) -> Array:
    """The weights of the pixels of x in pixel i of the result, by TensorFlow's formulas."""
    made = np.zeros(size)
    step = size / wanted
    if corners == "aligned" and wanted > 1:
        step = (size - 1) / (wanted - 1)
    if method == "nearest":
        at = {"centres": (i + 0.5) * step, "aligned": i * step + 0.5, "legacy": i * step}[corners]
        made[min(int(at + 1e-9), size - 1)] = 1
    elif method == "area":
        for j in range(math.ceil((i + 1) * step - 1e-9)):
            low, high = max(j, i * step), min(j + 1, (i + 1) * step)
            made[min(j, size - 1)] += max(high - low, 0)
        made /= made.sum()
    elif corners == "centres":
        wide = max(step, 1.0) if antialias else 1.0
        made[:] = [KERNELS[method]((j + 0.5 - (i + 0.5) * step) / wide) for j in range(size)]
        made /= made.sum()
    else:
        first, part = int(i * step + 1e-9), i * step - int(i * step + 1e-9)
        taps = {0: 1 - part, 1: part}
        if method == "bicubic":
            taps = {k: keys_cubic(k - part, -0.75) for k in (-1, 0, 1, 2)}
        for k, weight in taps.items():
            made[min(max(first + k, 0), size - 1)] += weight
    return made


def resized(x: Array, size: tuple[int, int], method: str, antialias: bool, corners: str) -> Array:
    rows, columns = (
        np.array([row_of(i, n, m, method, antialias, corners) for i in range(m)])
        for n, m in zip(x.shape[-3:-1], size, strict=True)
    )
    return np.einsum("ih,...hwc,jw->...ijc", rows, x, columns)


def ways_of(corners: str) -> dict[str, Any]:
    return {"centres": {}, "aligned": {"align_corners": True},
            "legacy": {"half_pixel_centers": False}}[corners]  # fmt: skip


CASES = [
    *((m, False, "centres") for m in ("nearest", "area", *KERNELS)),
    *((m, True, "centres") for m in KERNELS),
    *((m, False, c) for m in ("nearest", "bilinear", "bicubic") for c in ("aligned", "legacy")),
    ("area", False, "legacy"),
]


@pytest.mark.parametrize(("method", "antialias", "corners"), every(2, CASES))
def test_resize(method: str, antialias: bool, corners: str) -> None:
    how = {"antialias": antialias, **ways_of(corners)}
    for shape, size in (((5, 7, 3), (3, 11)), ((2, 8, 6, 1), (4, 3)), ((2, 3, 4, 18), (9, 4)),
                        ((1, 6, 2), (5, 1)), ((40, 2, 2), (1, 2))):  # fmt: skip
        x = image(*shape)
        expected = resized(x, size, method, antialias, corners)
        got = I.resize(x, size, method, **how)
        assert got.dtype is wf.float64
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    f = wf.compile(lambda x: I.resize(x, size, method, **how))
    np.testing.assert_allclose(f(x), expected, rtol=1e-12, atol=1e-12)


@examples(60, deadline=None)
@given(st.sampled_from(CASES), *[st.integers(1, 9)] * 4, st.sampled_from(["f4", "u1", "f2"]))
def test_resize_of_any_size(
    case: tuple[str, bool, str], h: int, w: int, rows: int, columns: int, dtype: str
) -> None:
    method, antialias, corners = case
    x = image(2, h, w, 3, dtype=dtype)
    expected = resized(x.astype("f8"), (rows, columns), method, antialias, corners)
    got = I.resize(x, (rows, columns), method, antialias=antialias, **ways_of(corners))
    kept = method == "nearest" or dtype != "u1"
    assert got.numpy().dtype == (dtype if kept else "f4")
    scale = 255 if dtype == "u1" else 1
    rtol = 2e-3 if dtype == "f2" else 1e-5
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("method", ["bilinear", "bicubic", "lanczos3"])
def test_resize_as_pillow(method: str) -> None:
    """Pillow's filters, which widen where they shrink, on floats."""
    Image = pytest.importorskip("PIL.Image")
    kind = {"bilinear": 2, "bicubic": 3, "lanczos3": 1}[method]
    x = image(37, 23, 1, dtype="f4")
    for size in ((10, 40), (60, 9)):
        expected = np.asarray(Image.fromarray(x[..., 0]).resize(size[::-1], resample=kind))
        got = I.resize(x, size, method, antialias=True)
        np.testing.assert_allclose(got[..., 0], expected, rtol=1e-4, atol=1e-5)


def test_gradients_of_resize() -> None:
    x = image(2, 5, 6, 2)
    for method, antialias, corners in CASES[::3]:
        how = {"antialias": antialias, **ways_of(corners)}
        check_gradient(lambda x, m=method, h=how: I.resize(x, (7, 3), m, **h) ** 2, x)
    few = image(1, 200, 3, 1)  # of 67 pixels one: a product with a matrix
    for x, size in ((few, (3, 3)), (image(1, 2, 3, 1), (80, 3))):
        check_gradient(lambda x, s=size: I.resize(x, s, antialias=True) ** 2, x)
    twice = wf.hessian(lambda x: wf.sum(I.resize(x, (3, 5)) ** 2))(image(2, 2, 1)).numpy()
    rows = [np.array([row_of(i, 2, m, "bilinear", False, "centres") for i in range(m)])
            for m in (3, 5)]  # fmt: skip
    wanted = 2 * np.einsum("ih,jw,ip,jq->hwpq", rows[0], rows[1], rows[0], rows[1])
    np.testing.assert_allclose(twice.reshape(2, 2, 2, 2), wanted, atol=1e-12)


def test_resize_of_batches_and_of_sizes_that_a_feed_decides() -> None:
    x = image(3, 4, 5, 2)
    expected = resized(x, (6, 3), "bilinear", False, "centres")
    np.testing.assert_allclose(wf.vmap(lambda x: I.resize(x, (6, 3)))(x), expected, rtol=1e-12)
    np.testing.assert_allclose(I.resize(x[None, :, None], (6, 3))[0, :, 0], expected, rtol=1e-12)
    with wf.Graph().as_default(), wf.Session() as session:
        fed = wf.placeholder(wf.float64, [None, 4, 5, 2])
        made = I.resize(fed, (6, 3))
        for batch in (3, 1):
            got = session.run(made, {fed: x[:batch]})
            np.testing.assert_allclose(got, expected[:batch], rtol=1e-12)


@pytest.mark.slow
def test_large_eager_images_are_native() -> None:
    x = image(4, 90, 80, 3, dtype="f4")
    for size in ((50, 60), (51, 61)):
        expected = resized(x.astype("f8"), size, "bilinear", False, "centres")
        np.testing.assert_allclose(I.resize(x, size), expected, rtol=1e-5, atol=1e-6)


def test_aspect_ratios() -> None:
    x = image(10, 20, 3)
    assert I.resize(x, (8, 8), preserve_aspect_ratio=True).shape == (4, 8, 3)
    assert I.resize(x, (30, 31), preserve_aspect_ratio=True).shape == (16, 31, 3)
    padded = I.resize_with_pad(x, 9, 8).numpy()
    assert padded.shape == (9, 8, 3)
    np.testing.assert_allclose(padded[2:6], I.resize(x, (4, 8)))
    assert not padded[:2].any()
    assert not padded[6:].any()


def test_what_resize_refuses() -> None:
    x = image(4, 4, 1)
    with pytest.raises(InvalidArgumentError, match=r"wf\.image\.resize: method 'cubic'(.|\n)*bicu"):
        I.resize(x, (2, 2), "cubic")
    with pytest.raises(UnsupportedError, match="antialias=True is built for half-pixel centres"):
        I.resize(x, (2, 2), antialias=True, align_corners=True)
    with pytest.raises(UnsupportedError, match="method 'lanczos3' is built for half-pixel"):
        I.resize(x, (2, 2), "lanczos3", half_pixel_centers=False)
    with pytest.raises(InvalidArgumentError, match="exclude each other"):
        I.resize(x, (2, 2), align_corners=True, half_pixel_centers=True)
    with pytest.raises(InvalidArgumentError, match="size must be one or two integers of at least"):
        I.resize(x, (0, 2))
    with pytest.raises(
        ShapeError, match=r"images are \(\.\.\., height, width, channels\), got f64"
    ):
        I.resize(x[..., 0], (2, 2))
    with pytest.raises(ShapeError, match="has no pixels"):
        I.resize(np.zeros((0, 2, 1)), (2, 2))
    with wf.Graph().as_default(), pytest.raises(ShapeError, match=r"height and width of .* known"):
        I.resize(wf.placeholder(wf.float32, [1, None, 4, 1]), (2, 2))


# ------------------------------------------------------------------------------ parts by boxes
def crops(x: Array, boxes: Array, rows: Array, size: tuple[int, int], method: str) -> Array:
    """TensorFlow's crop_and_resize, pixel by pixel."""
    height, width = x.shape[1:3]
    made = np.full((len(boxes), *size, x.shape[-1]), -1.0)
    for n, (y1, x1, y2, x2) in enumerate(boxes):
        for i, j in np.ndindex(*size):
            y, c = (
                first * (m - 1) + k * (last - first) * (m - 1) / (count - 1)
                if count > 1
                else 0.5 * (first + last) * (m - 1)
                for first, last, m, k, count in (
                    (y1, y2, height, i, size[0]),
                    (x1, x2, width, j, size[1]),
                )
            )
            if not (0 <= y <= height - 1 and 0 <= c <= width - 1):
                continue
            held = x[rows[n]]
            if method == "nearest":
                made[n, i, j] = held[math.floor(y + 0.5), math.floor(c + 0.5)]
                continue
            t, u, left, right = math.floor(y), math.ceil(y), math.floor(c), math.ceil(c)
            top = held[t, left] + (held[t, right] - held[t, left]) * (c - left)
            low = held[u, left] + (held[u, right] - held[u, left]) * (c - left)
            made[n, i, j] = top + (low - top) * (y - t)
    return made


BOXES = np.array(
    [[0, 0, 1, 1], [0.2, 0.1, 0.7, 0.93], [0.9, 0.8, 0.13, 0.3], [-0.3, 0.2, 0.5, 1.4]]
)


#: Between pixels, where the bilinear formula has a derivative.
NEAR = np.random.default_rng(4).random((3, 4)) / 30


@pytest.mark.share(4)
@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(3, 4), (1, 2), (6, 1)])
def test_crop_and_resize(method: str, size: tuple[int, int]) -> None:
    x, rows = image(3, 5, 6, 2), np.array([0, 2, 1, 2])
    expected = crops(x, BOXES, rows, size, method)
    check(lambda x, b, r: I.crop_and_resize(x, b, r, size, method, -1.0), (x, BOXES, rows),
          expected, 1e-12)  # fmt: skip
    check_gradient(lambda x: I.crop_and_resize(x, BOXES, rows, size, method) ** 2, x)
    if method == "bilinear":
        check_gradient(lambda b: I.crop_and_resize(x, b, rows[1:], size), BOXES[1:] + NEAR)


def test_what_crop_and_resize_refuses() -> None:
    x = image(2, 4, 4, 1)
    with pytest.raises(InvalidArgumentError, match="out of"):
        wf.compile(lambda r: I.crop_and_resize(x, BOXES[:1], r, 2))(np.array([2]))
    with pytest.raises(ShapeError, match=r"boxes \(n, 4\) and box_indices \(n\) are needed"):
        I.crop_and_resize(x, BOXES[0], [0], 2)
    with pytest.raises(TypeRuleError, match="indices must be integers, got float32"):
        I.crop_and_resize(x, BOXES[:1], [0.0], 2)
    assert I.crop_and_resize(image(1, 4, 4, 1, dtype="u1"), BOXES[:1], [0], 2).dtype is wf.float32


# ------------------------------------------------------------------------------ crops and flips
@pytest.mark.parametrize(
    ("dtype", "lead"), every(4, itertools.product(["f4", "f8", "u1"], [(), (2,), (2, 3)]))
)
def test_flips_and_turns(dtype: str, lead: tuple[int, ...]) -> None:
    x = image(*lead, 4, 5, 3, dtype=dtype)
    check(I.flip_left_right, (x,), x[..., :, ::-1, :])
    check(I.flip_up_down, (x,), x[..., ::-1, :, :])
    check(I.transpose, (x,), np.swapaxes(x, -3, -2))
    for k in range(-1, 5):
        check(lambda x, k=k: I.rot90(x, k), (x,), np.rot90(x, k, axes=(-3, -2)))


@pytest.mark.parametrize("dtype", ["f4", "u1"])
def test_crops_and_paddings(dtype: str) -> None:
    x = image(2, 7, 5, 3, dtype=dtype)
    check(lambda x: I.crop_to_bounding_box(x, 1, 2, 4, 3), (x,), x[:, 1:5, 2:5])
    check(lambda x, a, b: I.crop_to_bounding_box(x, a, b, 4, 3), (x, np.int32(3), np.int64(0)),
          x[:, 3:7, :3])  # fmt: skip
    check(lambda x: I.pad_to_bounding_box(x, 1, 2, 9, 8), (x,),
          np.pad(x, [(0, 0), (1, 1), (2, 1), (0, 0)]))  # fmt: skip
    check(lambda x: I.central_crop(x, 0.5), (x,), x[:, 1:6, 1:4])
    check(lambda x: I.central_crop(x, 1), (x,), x)
    check(lambda x: I.resize_with_crop_or_pad(x, 4, 8), (x,),
          np.pad(x[:, 1:5], [(0, 0), (0, 0), (1, 2), (0, 0)]))  # fmt: skip
    wide = image(2, 7, 5, 3)
    check_gradient(lambda x: I.pad_to_bounding_box(x, 1, 2, 9, 8) ** 2, wide)
    check_gradient(lambda x: I.resize_with_crop_or_pad(x, 4, 8) ** 2, wide)


def test_what_crops_refuse() -> None:
    x = image(4, 4, 1)
    with pytest.raises(InvalidArgumentError, match=r"3 pixels from 2 on are not within 4 of f64"):
        I.crop_to_bounding_box(x, 2, 0, 3, 2)
    with pytest.raises(InvalidArgumentError, match="out of"):
        wf.compile(lambda a: I.crop_to_bounding_box(x, a, 0, 3, 2))(np.int64(2))
    with pytest.raises(InvalidArgumentError, match="does not fit into 4 x 5"):
        I.pad_to_bounding_box(x, 1, 0, 4, 5)
    with pytest.raises(InvalidArgumentError, match=r"central_fraction must be in \(0, 1\]"):
        I.central_crop(x, 0)
    with pytest.raises(InvalidArgumentError, match=r"size \[5, 2\] is not within f64\[4,4,1\]"):
        I.random_crop(wf.random.key(0), x, (5, 2))
    with pytest.raises(InvalidArgumentError, match="neither 2 numbers nor one per axis"):
        I.random_crop(wf.random.key(0), x, (1, 2, 2, 1))


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize(
    ("sizes", "strides", "rates"), [((2, 3), (1, 2), 1), (3, 2, (2, 1)), ([1, 1, 2, 1], 3, 1)]
)
def test_extract_patches(padding: str, sizes: Any, strides: Any, rates: Any) -> None:
    x = image(2, 7, 6, 3)

    def two(v: Any) -> tuple[int, int]:
        return (v, v) if isinstance(v, int) else tuple(v)[-3:-1] if len(v) == 4 else v

    window, steps, spread = two(sizes), two(strides), two(rates)
    reach = [(k - 1) * r + 1 for k, r in zip(window, spread, strict=True)]
    counts, before = [], []
    for n, s, k in zip(x.shape[1:3], steps, reach, strict=True):
        counts.append(-(-n // s) if padding == "SAME" else (n - k) // s + 1)
        before.append(max((counts[-1] - 1) * s + k - n, 0) // 2 if padding == "SAME" else 0)
    made = np.zeros((2, *counts, window[0] * window[1] * 3))
    for n, r, c, i, j, k in itertools.product(
        range(2), *map(range, counts), *map(range, window), range(3)
    ):
        y = r * steps[0] + i * spread[0] - before[0]
        u = c * steps[1] + j * spread[1] - before[1]
        if 0 <= y < 7 and 0 <= u < 6:
            made[n, r, c, (i * window[1] + j) * 3 + k] = x[n, y, u, k]
    f = lambda x: I.extract_patches(x, sizes, strides, rates, padding)  # noqa: E731
    check(f, (x,), made)
    check(f, (x[0].astype("f4"),), made[0].astype("f4"))
    check_gradient(lambda x: f(x) ** 2, x)


# --------------------------------------------------------------------------------- by random keys
def test_random_flips() -> None:
    """Each image by its own coin, which is that of `bernoulli`; the same key gives the same."""
    x, key = image(40, 3, 4, 1), wf.random.key(5)
    coins = np.asarray(wf.random.bernoulli(key, 0.5, (40, 1, 1, 1)))
    assert 8 < coins.sum() < 32
    check(lambda x: I.random_flip_left_right(key, x), (x,), np.where(coins, x[:, :, ::-1], x))
    check(lambda x: I.random_flip_up_down(key, x), (x,), np.where(coins, x[:, ::-1], x))
    one = I.random_flip_left_right(key, x[0]).numpy()
    assert any(np.array_equal(one, v) for v in (x[0], x[0][:, ::-1]))


def test_random_crops() -> None:
    x = np.arange(6 * 5 * 2).reshape(6, 5, 2)
    crop = wf.compile(lambda key, x: I.random_crop(key, x, (3, 4)))
    seen = set()
    for seed in range(60):
        key = wf.random.key(seed)
        got = crop(key, x).numpy()
        top, left = divmod(int(got[0, 0, 0]) // 2, 5)
        np.testing.assert_array_equal(got, x[top : top + 3, left : left + 4])
        seen.add((top, left))
    assert seen == set(itertools.product(range(4), range(2)))  # all places, and no others
    full = I.random_crop(wf.random.key(1), x, (3, 4, 1)).numpy()
    assert full.shape == (3, 4, 1)
    keys = wf.stack(wf.random.split(wf.random.key(0), 7))
    many = wf.vmap(lambda key: I.random_crop(key, x, (3, 4)))(keys).numpy()
    for key, got in zip(keys, many, strict=True):
        np.testing.assert_array_equal(got, I.random_crop(key, x, (3, 4)))
    assert len({m.tobytes() for m in many}) > 2


@pytest.mark.parametrize(
    ("name", "limits", "low", "high"),
    [("brightness", (0.3,), -0.3, 0.3), ("contrast", (0.5, 1.5), 0.5, 1.5),
     ("hue", (0.2,), -0.2, 0.2), ("saturation", (0.4, 1.1), 0.4, 1.1)],
)  # fmt: skip
def test_random_colours(name: str, limits: Any, low: float, high: float) -> None:
    """The adjustment by the uniform number of the key."""
    x, key = image(3, 4, 3, dtype="f4"), wf.random.key(3)
    drawn = float(wf.random.uniform(key, (), minval=low, maxval=high))
    expected = getattr(I, f"adjust_{name}")(x, drawn).numpy()
    check(lambda key, x: getattr(I, f"random_{name}")(key, x, *limits), (key, x), expected, 1e-5)
    with pytest.raises(InvalidArgumentError, match=r"bound|negative|must be in"):
        getattr(I, f"random_{name}")(key, x, *(-1.0, 2.0)[: len(limits)])


# --------------------------------------------------------------------------------------- colours
def test_convert_image_dtype() -> None:
    """TensorFlow's rules, number by number."""
    u1, i2 = np.arange(256, dtype="u1"), np.array([-32768, -5, 0, 7, 32767], "i2")
    check(lambda x: I.convert_image_dtype(x, "float32"), (u1,), (u1 / 255).astype("f4"), 1e-7)
    check(lambda x: I.convert_image_dtype(x, "float64"), (i2,), i2 / 32767, 1e-15)
    x = np.array([0.0, 0.1, 0.5, 0.999, 1.0])
    check(lambda x: I.convert_image_dtype(x, "uint8"), (x,), np.floor(x * 255.5).astype("u1"))
    wide = np.array([-1.0, 0.5, 2.0, 1e9], "f4")
    for dtype in ("uint8", "int16", "int32", "uint32", "int64"):
        ends, top = np.iinfo(dtype), np.float64(np.iinfo(dtype).max)
        got = I.convert_image_dtype(wide, dtype, saturate=True).numpy().astype("f8")
        wanted = np.clip(wide.astype("f8") * (top + 0.5), ends.min, ends.max)
        np.testing.assert_allclose(got, np.trunc(wanted), rtol=1e-6)
    check(lambda x: I.convert_image_dtype(x, "uint8"), (np.array([0, 256, 65535], "u2"),),
          np.array([0, 1, 255], "u1"))  # fmt: skip
    check(lambda x: I.convert_image_dtype(x, "uint16"), (u1,), u1.astype("u2") * 256)
    check(lambda x: I.convert_image_dtype(x, "uint8", True), (i2,),
          np.array([0, 0, 0, 0, 255], "u1"))  # fmt: skip
    np.testing.assert_array_equal(
        I.convert_image_dtype(I.convert_image_dtype(u1, "float32"), "uint8"), u1
    )
    with pytest.raises(TypeRuleError, match="takes integers and floats, got complex64"):
        I.convert_image_dtype(wf.asarray([1j]), "uint8")


@pytest.mark.share(3)
@pytest.mark.parametrize("dtype", ["f4", "f8", "u1"])
def test_adjustments(dtype: str) -> None:
    x = image(2, 4, 5, 3, dtype=dtype)
    wide = x / 255 if dtype == "u1" else x.astype("f8")

    def back(v: Array) -> Array:
        if dtype == "u1":
            return np.floor(np.clip(v * 255.5, 0, 255)).astype("u1")
        return v.astype(dtype)

    centre = wide.mean((1, 2), keepdims=True)
    rtol = {"f4": 1e-5, "f8": 1e-12, "u1": 0}[dtype]
    atol = 1 if dtype == "u1" else rtol  # a number on the edge may be the next one
    for f, expected in (
        (lambda x: I.adjust_brightness(x, 0.3), wide + 0.3),
        (lambda x: I.adjust_contrast(x, 1.7), (wide - centre) * 1.7 + centre),
        (lambda x: I.adjust_gamma(x, 2.2, 0.9), 0.9 * wide**2.2),
        (lambda x: I.adjust_gamma(x), wide),
        (lambda x: I.rgb_to_grayscale(x), wide @ np.array([[0.2989], [0.587], [0.114]])),
    ):
        check(f, (x,), back(expected), rtol, atol)
    check(I.grayscale_to_rgb, (x[..., :1],), np.repeat(x[..., :1], 3, -1))
    kind = "f4" if dtype == "u1" else dtype
    held = x.astype("f8")
    spread = np.maximum(held.std((1, 2, 3), keepdims=True), 1 / np.sqrt(60))
    standard = (held - held.mean((1, 2, 3), keepdims=True)) / spread
    check(I.per_image_standardization, (x,), standard.astype(kind), 1e-5)
    flat = np.full((2, 2, 1), 0.5)
    check(I.per_image_standardization, (flat,), np.zeros((2, 2, 1)))


def by_pixel(f: Callable[..., tuple[float, ...]], x: Array) -> Array:
    return np.apply_along_axis(lambda p: np.array(f(*p)), -1, x)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_hue_saturation_value(dtype: str) -> None:
    """Python's colorsys, on colours, greys, black and equal largest channels."""
    x = np.concatenate([image(50, 3), [[0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5], [1, 1, 0], [0, 1, 1],
                                       [1, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]]])  # fmt: skip
    x = x.reshape(1, -1, 3)
    rtol = 1e-12 if dtype == "f8" else 1e-5
    hsv = by_pixel(colorsys.rgb_to_hsv, x)
    check(I.rgb_to_hsv, (x.astype(dtype),), hsv.astype(dtype), rtol)
    check(I.hsv_to_rgb, (hsv.astype(dtype),), x.astype(dtype), rtol)
    turned = by_pixel(lambda h, s, v: colorsys.hsv_to_rgb((h + 0.3) % 1, s, v), hsv)
    check(lambda x: I.adjust_hue(x, 0.3), (x.astype(dtype),), turned.astype(dtype), rtol)
    check(lambda x: I.adjust_hue(x, -0.7), (x.astype(dtype),), turned.astype(dtype), rtol)
    more = by_pixel(lambda h, s, v: colorsys.hsv_to_rgb(h, min(s * 1.6, 1), v), hsv)
    check(lambda x: I.adjust_saturation(x, 1.6), (x.astype(dtype),), more.astype(dtype), rtol)


def test_gradients_of_colours() -> None:
    x = image(2, 3, 4, 3)
    for f in (I.rgb_to_hsv, I.hsv_to_rgb, I.rgb_to_grayscale, I.per_image_standardization,
              lambda x: I.adjust_saturation(x, 0.7), lambda x: I.adjust_contrast(x, 1.5),
              lambda x: I.adjust_gamma(x, 1.5)):  # fmt: skip
        check_gradient(f, x, compiled=False)
    check_gradient(lambda x: I.adjust_hue(x, 0.2), x)
    for by in (I.adjust_brightness, I.adjust_contrast, I.adjust_gamma, I.adjust_hue):
        check_gradient(lambda v, f=by: f(x, v), np.array(0.4), compiled=False)
    greys = np.full((1, 2, 3), 0.5)
    for f in (I.rgb_to_hsv, I.hsv_to_rgb, lambda x: I.adjust_hue(x, 0.1)):
        assert np.isfinite(wf.grad(lambda x, f=f: wf.sum(f(x)))(greys * [[[1], [0]]])).all()


def test_what_colours_refuse() -> None:
    x = image(2, 2, 4)
    for f in (I.rgb_to_hsv, I.hsv_to_rgb, I.rgb_to_grayscale, lambda x: I.adjust_hue(x, 0.1)):
        with pytest.raises(ShapeError, match=r"last axis must be 3 channels, got f64\[2,2,4\]"):
            f(x)
    with pytest.raises(ShapeError, match="last axis must be 1 channel"):
        I.grayscale_to_rgb(x)
    with pytest.raises(InvalidArgumentError, match=r"delta must be in \[-1, 1\], got 1\.5"):
        I.adjust_hue(x[..., :3], 1.5)
    with pytest.raises(InvalidArgumentError, match="gamma must not be negative"):
        I.adjust_gamma(x, -1.0)
    with pytest.raises(TypeRuleError, match="takes integers and floats, got bool"):
        I.adjust_brightness(x > 0, 0.1)


# -------------------------------------------------------------------------------------- measures
def test_total_variation_and_psnr() -> None:
    x, y = image(3, 5, 6, 2), image(3, 5, 6, 2, seed=1)
    total = np.abs(np.diff(x, axis=1)).sum((1, 2, 3)) + np.abs(np.diff(x, axis=2)).sum((1, 2, 3))
    check(I.total_variation, (x,), total, 1e-12)
    check_gradient(I.total_variation, x)
    error = ((x - y) ** 2).mean((1, 2, 3))
    check(lambda x, y: I.psnr(x, y, 1.0), (x, y), 10 * np.log10(1 / error), 1e-12)
    check_gradient(lambda x, y: I.psnr(x, y, 2.0), x, y)
    assert float(I.psnr(x, x, 1.0)[0]) == math.inf
    a, b = image(4, 5, 1, dtype="u1"), image(4, 5, 1, dtype="u1", seed=1)
    error = ((a.astype("f8") - b) ** 2).mean()
    check(lambda a, b: I.psnr(a, b, 255), (a, b), np.float32(10 * np.log10(255**2 / error)), 1e-5)
    assert float(I.total_variation(a)) == float(
        np.abs(np.diff(a.astype(int), axis=0)).sum() + np.abs(np.diff(a.astype(int), axis=1)).sum()
    )
    with pytest.raises(ShapeError, match="two images of one shape and dtype are needed"):
        I.psnr(x, x.astype("f4"), 1.0)


def similarity(x: Array, y: Array, top: float, size: int, sigma: float) -> float:
    """Wang et al., equation 13, on one channel."""
    return similarities(x, y, top, size, sigma)[0]


def similarities(x: Array, y: Array, top: float, size: int, sigma: float) -> tuple[float, float]:
    """The similarity window by window, on one channel, and that of contrasts alone."""
    window = np.array([
        [math.exp(-((i - (size - 1) / 2) ** 2 + (j - (size - 1) / 2) ** 2) / (2 * sigma**2))
         for j in range(size)] for i in range(size)
    ])  # fmt: skip
    window /= window.sum()
    c1, c2 = (0.01 * top) ** 2, (0.03 * top) ** 2
    values, contrasts = [], []
    for i in range(x.shape[0] - size + 1):
        for j in range(x.shape[1] - size + 1):
            a, b = x[i : i + size, j : j + size], y[i : i + size, j : j + size]
            ma, mb = (window * a).sum(), (window * b).sum()
            va, vb = (window * (a - ma) ** 2).sum(), (window * (b - mb) ** 2).sum()
            cov = (window * (a - ma) * (b - mb)).sum()
            contrasts.append((2 * cov + c2) / (va + vb + c2))
            values.append((2 * ma * mb + c1) / (ma**2 + mb**2 + c1) * contrasts[-1])
    return float(np.mean(values)), float(np.mean(contrasts))


def over_scales(x: Array, y: Array, top: float, weights: Any, size: int, sigma: float) -> float:
    """TensorFlow's: each scale is the means of 2 x 2 pixels of the one before, on one channel."""
    product = 1.0
    for level, weight in enumerate(weights):
        whole, contrast = similarities(x, y, top, size, sigma)
        score = whole if level == len(weights) - 1 else contrast
        product *= max(score, 0.0) ** weight
        x, y = (
            np.array([
                [np.mean([v[min(i + a, len(v) - 1), min(j + b, len(v[0]) - 1)]
                          for a in (0, 1) for b in (0, 1)])
                 for j in range(0, len(v[0]), 2)] for i in range(0, len(v), 2)
            ]) for v in (x, y)
        )  # fmt: skip
    return product


@pytest.mark.parametrize(("size", "sigma"), every(2, [(4, 0.8), (11, 1.5)]))
def test_ssim(size: int, sigma: float) -> None:
    x = image(2, 13, 12, 2)
    y = 0.6 * x + 0.4 * image(2, 13, 12, 2, seed=1)
    expected = [
        np.mean([similarity(a[..., c], b[..., c], 1.0, size, sigma) for c in range(2)])
        for a, b in zip(x, y, strict=True)
    ]
    f = lambda x, y: I.ssim(x, y, 1.0, size, sigma)  # noqa: E731
    check(f, (x, y), np.array(expected), 1e-10)
    check_gradient(f, x, y)
    a, b = (np.round(v * 255).astype("u1") for v in (x[0], y[0]))
    held = [similarity(a[..., c] * 1.0, b[..., c] * 1.0, 255.0, size, sigma)
            for c in range(2)]  # fmt: skip
    check(lambda a, b: I.ssim(a, b, 255, size, sigma), (a, b), np.float32(np.mean(held)),
          1e-4)  # fmt: skip
    with pytest.raises(ShapeError, match=r"at least 20 x 20 pixels(.|\n)*filter_size= makes"):
        I.ssim(x, y, 1.0, 20)
    with pytest.raises(InvalidArgumentError, match="filter_size must be at least 1"):
        I.ssim(x, y, 1.0, 0)


MULTISCALE: list[tuple[Any, int, float]] = [
    ((0.3, 0.5, 0.2), 4, 0.8), ((1.0,), 5, 1.5), ((0.5, 0.0, 0.25, 1.5), 2, 1.0),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize(("weights", "size", "sigma"), MULTISCALE)
def test_ssim_multiscale(weights: Any, size: int, sigma: float) -> None:
    x = image(2, 19, 14, 2)
    y = 0.6 * x + 0.4 * image(2, 19, 14, 2, seed=1)
    expected = [
        np.mean([over_scales(a[..., c], b[..., c], 1.0, weights, size, sigma) for c in range(2)])
        for a, b in zip(x, y, strict=True)
    ]
    f = lambda x, y: I.ssim_multiscale(x, y, 1.0, weights, size, sigma)  # noqa: E731
    check(f, (x, y), np.array(expected), 1e-10)
    check_gradient(f, x, y)
    check(f, (x[0], y[0]), np.array(expected[0]), 1e-10)
    a, b = (np.round(v * 255).astype("u1") for v in (x[0], y[0]))
    held = [over_scales(a[..., c] * 1.0, b[..., c] * 1.0, 255.0, weights, size, sigma)
            for c in range(2)]  # fmt: skip
    check(lambda a, b: I.ssim_multiscale(a, b, 255, weights, size, sigma), (a, b),
          np.float32(np.mean(held)), 1e-4)  # fmt: skip


@pytest.mark.slow
def test_corners_of_ssim_multiscale() -> None:
    x, y = image(1, 162, 161, 1), image(1, 162, 161, 1, seed=1)
    found = float(I.ssim_multiscale(x, y, 1.0)[0])  # the five scales of the paper
    weights = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
    assert found == pytest.approx(over_scales(x[0, ..., 0], y[0, ..., 0], 1.0, weights, 11, 1.5))
    assert float(I.ssim_multiscale(x, x, 1.0)[0]) == 1.0
    small = image(16, 16, 1)
    against = 1 - small  # its contrasts are negative: 0, with a gradient of 0
    f = lambda x: wf.sum(I.ssim_multiscale(x, against, 1.0, (0.3, 0.7), 4))  # noqa: E731
    assert float(f(small)) == 0.0
    assert not np.any(wf.grad(f)(small).numpy())
    assert np.isnan(float(I.ssim_multiscale(small, small * np.nan, 1.0, (0.3, 0.7), 4)))
    with pytest.raises(ShapeError, match=r"at least 161 x 161 pixels(.|\n)*fewer power_factors"):
        I.ssim_multiscale(x[:, :160], y[:, :160], 1.0)
    for bad in ((), 1.0, (1.0, -1.0), "ab", (math.nan,), None, [[1.0]]):
        with pytest.raises(InvalidArgumentError, match="are no numbers of at least 0"):
            I.ssim_multiscale(x, y, 1.0, bad)


# ----------------------------------------------------------------------------------------- boxes
def suppressed(boxes: Array, scores: Array, most: int, overlap: float, least: float) -> list[int]:
    """TensorFlow's greedy algorithm over Python floats."""

    def area(b: Array) -> float:
        return max(b[2] - b[0], 0) * max(b[3] - b[1], 0)

    rows = [[min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3])] for b in boxes]
    kept: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: (-scores[i], i)):
        if len(kept) == most or not scores[i] > least:
            break
        for j in kept:
            a, b = rows[i], rows[j]
            inner = [max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])]
            both, union = area(inner), area(a) + area(b) - area(inner)
            if min(area(a), area(b)) > 0 and both / union > overlap:
                break
        else:
            kept.append(i)
    return kept


@examples(48, deadline=None)
@given(
    st.integers(0, 2**32), st.integers(0, 12), st.integers(0, 6), st.sampled_from([0, 0.3, 0.5, 1])
)
def test_non_max_suppression(seed: int, count: int, most: int, overlap: float) -> None:
    rng = np.random.default_rng(seed)
    boxes = rng.integers(0, 8, (count, 4)) / 4  # equal corners, boxes without area
    scores = rng.integers(0, 10, count) / 10
    least = rng.choice([-np.inf, 0.35])
    kept = suppressed(boxes, scores, most, overlap, least)
    f = lambda b, s: I.non_max_suppression(b, s, most, overlap, float(least))  # noqa: E731
    check(lambda b, s: f(b, s).indices, (boxes, scores), np.array(kept + [0] * (most - len(kept)),
          np.int64))  # fmt: skip
    check(lambda b, s: f(b, s).number, (boxes, scores), np.int64(len(kept)))


def test_suppression_in_batches() -> None:
    boxes, scores = RNG.random((3, 2, 9, 4)), RNG.random((3, 2, 9))
    got = I.non_max_suppression(boxes, scores, 5, 0.2)
    rows = wf.vmap(wf.vmap(lambda b, s: I.non_max_suppression(b, s, 5, 0.2)))(boxes, scores)
    for at in np.ndindex(3, 2):
        kept = suppressed(boxes[at], scores[at], 5, 0.2, -np.inf)
        for made in (got, rows):
            assert made.number.numpy()[at] == len(kept)
            assert made.indices.numpy()[at].tolist() == kept + [0] * (5 - len(kept))
    slope = wf.grad(lambda b: wf.sum(wf.astype(I.non_max_suppression(b, scores, 5).indices, b.dtype)
                                     ) + wf.sum(b))(boxes)  # fmt: skip
    assert (slope.numpy() == 1).all()
    with pytest.raises(ShapeError, match=r"boxes \(\.\.\., n, 4\) and scores \(\.\.\., n\)"):
        I.non_max_suppression(boxes, scores[0], 5)
    with pytest.raises(InvalidArgumentError, match="iou_threshold 2 in"):
        I.non_max_suppression(boxes, scores, 5, 2)
