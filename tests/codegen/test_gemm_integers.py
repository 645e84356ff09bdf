"""Products of narrow integers in 32 bits: exact on every instruction set, by two or four."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import re
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cut_calls import assert_same_bits, cut_everything, same_in_cuts
from example_counts import examples
from hypothesis import example, given
from hypothesis import strategies as st

import weft as wf
from weft.codegen.llvm.target import has_feature, host_isas, using
from weft.codegen.products import gemm
from weft.codegen.tiles import micro_kernel as dots
from weft.codegen.tiles.micro_kernel import tile_of
from weft.ir.dtypes import as_dtype
from weft.ir.errors import TypeRuleError
from weft.passes.pipelines import PIPELINES, REPRODUCIBLE, STANDARD
from weft.runtime.native.executable import Executable, compile_graph
from weft.runtime.native.pool import POOL

Array = np.ndarray[Any, Any]
ISAS = ["native", *host_isas()]
ENDS = {"i8": (-128, 127), "u8": (0, 255), "i16": (-(2**15), 2**15 - 1)}
SIZES = st.sampled_from([0, 1, 2, 3, 5, 8, 9, 16, 17, 33, 48, 49, 100])
DEPTHS = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 31, 32, 33, 63, 64, 65, 127, 130, 515, 1030, 1100])
BATCHES = st.sampled_from([((), ()), ((3,), (3,)), ((3,), ()), ((), (2,)), ((2, 1), (3,))])
LAYOUTS = st.sampled_from(["plain", "transposed", "strided"])


def draw(rng: np.random.Generator, shape: tuple[int, ...], short: str) -> Array:
    """All bits, and many that are the largest or the smallest."""
    dtype, (low, high) = as_dtype(short).numpy, ENDS[short]
    x = rng.integers(low, high + 1, shape).astype(dtype)
    ends = rng.choice(np.array([low, high], dtype), shape)
    return np.where(rng.random(shape) < 0.3, ends, x)


def laid(x: Array, layout: str) -> tuple[Array, Callable[[Any], Any]]:
    """An array that holds the elements of `x` in another order, and what makes `x` of it."""
    if layout == "transposed":
        return np.ascontiguousarray(x.swapaxes(-1, -2)), lambda v: wf.matrix_transpose(v)
    if layout == "strided":
        return np.repeat(x, 2, -1), lambda v: v[..., ::2]
    return x, lambda v: v


def truth(a: Array, b: Array) -> Array:
    """NumPy's product in 32 bits, which wraps."""
    return np.matmul(a.astype(np.int32), b.astype(np.int32))


def product(a: Any, b: Any) -> Any:
    return wf.matmul(a, b, preferred_element_type=wf.int32)


@pytest.mark.share(4)
@pytest.mark.parametrize("isa", ISAS)
@examples(120)
@given(
    BATCHES,
    st.tuples(SIZES, SIZES, DEPTHS),
    st.tuples(LAYOUTS, LAYOUTS),
    st.tuples(st.sampled_from(sorted(ENDS)), st.sampled_from(sorted(ENDS))),
    st.integers(0, 1000),
)
@example(((), ()), (100, 100, 1030), ("plain", "plain"), ("i8", "i8"), 0)
@example(((), ()), (100, 100, 515), ("transposed", "transposed"), ("i16", "i16"), 0)
@example(((3,), ()), (33, 49, 131), ("plain", "transposed"), ("u8", "u8"), 0)
@example(((), ()), (1, 1, 1), ("plain", "plain"), ("i8", "i8"), 0)
def test_as_numpy(
    isa: str,
    batches: tuple[tuple[int, ...], tuple[int, ...]],
    sizes: tuple[int, int, int],
    layouts: tuple[str, str],
    shorts: tuple[str, str],
    seed: int,
) -> None:
    (m, n, k), rng = sizes, np.random.default_rng(seed)
    a, b = draw(rng, (*batches[0], m, k), shorts[0]), draw(rng, (*batches[1], k, n), shorts[1])
    (x, of_x), (y, of_y) = laid(a, layouts[0]), laid(b, layouts[1])
    f = wf.compile(lambda x, y: product(of_x(x), of_y(y)), target=isa)
    got = f(x, y)
    assert got.dtype == wf.int32
    np.testing.assert_array_equal(got.numpy(), truth(a, b))


@pytest.mark.share(3)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("short", sorted(ENDS))
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 64, 257, 4099])
def test_the_ends_of_the_range(isa: str, short: str, k: int) -> None:
    """Sums of the largest products there are: those of i16 wrap."""
    dtype, f = as_dtype(short).numpy, wf.compile(product, target=isa)
    for x, y in itertools.product(ENDS[short], repeat=2):
        a, b = np.full((5, k), x, dtype), np.full((k, 18), y, dtype)
        np.testing.assert_array_equal(f(a, b).numpy(), truth(a, b))


@pytest.mark.share(4)
@pytest.mark.parametrize("short", ["i8", "u8", "i16", "u16"])
@pytest.mark.parametrize("isa", ISAS)
def test_products_of_their_own_dtype(isa: str, short: str) -> None:
    """Low bits are the same, whatever the sums wrap at."""
    rng, dtype = np.random.default_rng(0), as_dtype(short).numpy
    f = wf.compile(lambda a, b: a @ b, target=isa)
    for m, k, n in ((7, 5, 9), (40, 131, 60), (9, 1030, 50)):
        a, b = (np.frombuffer(rng.bytes(p * q * dtype.itemsize), dtype).reshape(p, q)
                for p, q in ((m, k), (k, n)))  # fmt: skip
        np.testing.assert_array_equal(f(a, b).numpy(), a @ b)


def requantised(x: Any, w: Any, bias: Any, scale: Any) -> Any:
    """A quantised layer: what inference with 8 bits is made of."""
    total = wf.maximum(product(x, w) + bias, 0)
    return wf.astype(wf.clip(wf.round(wf.astype(total, wf.float32) * scale), -128, 127), wf.int8)


def layer() -> list[Array]:
    rng = np.random.default_rng(0)
    x, w = draw(rng, (70, 131), "i8"), draw(rng, (131, 100), "i8")
    bias = rng.integers(-(2**17), 2**17, 100).astype(np.int32)
    return [x, w, bias, np.float32(1.0 / 2**13) * rng.random(100).astype(np.float32)]


@pytest.mark.parametrize("isa", ISAS)
def test_what_follows_is_one_kernel_with_it(isa: str) -> None:
    x, w, bias, scale = layer()
    total = np.maximum(truth(x, w) + bias, 0)
    wanted = np.clip(np.round(total.astype(np.float32) * scale), -128, 127).astype(np.int8)
    f = wf.compile(requantised, target=isa)
    np.testing.assert_array_equal(f(x, w, bias, scale).numpy(), wanted)
    text = f.ir(x, w, bias, scale)
    assert text.count("fused(") == 1
    assert "i32[70,131]" not in text.split("{", 1)[0]
    assert "reads i8" in f.explain(x, w, bias, scale)


@pytest.mark.share(2)
@pytest.mark.parametrize("isa", ISAS)
def test_which_instruction(isa: str) -> None:
    """A multiply for each of so many products: 2, or 4 of i8 where VNNI is."""
    a = np.ones((64, 64), np.int8)
    with using(isa):
        pairs = tile_of("i16").depth == 2
        quads = has_feature("avx512_vnni")
        assert tile_of("i8").depth == (4 if quads else 2)
    assert pairs
    for dtype, quad in ((np.int8, quads), (np.int16, False)):
        x = a.astype(dtype)
        text = wf.compile(product, target=isa).asm(x, x)
        assert not re.search("pmulld|pmullw", text)
        assert re.search("vpdpbusd" if quad else "pmaddwd|vpdpwssd", text)


@pytest.mark.share(2)
@pytest.mark.parametrize("isa", ISAS)
def test_sums_stay_in_registers(isa: str) -> None:
    """The loops over k have one product for each vector of the tile, and store nothing."""
    a = np.ones((64, 64), np.int8)
    for dtype in (np.int8, np.int16):
        x = a.astype(dtype)
        with using(isa):
            tile = tile_of(as_dtype(x.dtype).short)
        text = wf.compile(product, target=isa).asm(x, x)
        blocks = re.split(r"^\.?L\S+:|^\S+:", text, flags=re.M)
        spill = re.compile(r"v?mov\w+\s+%[xyz]mm\d+, -?\w*\(|v?mov\w+\s+-?\w*\(%r[sb]p\), %[xyz]mm")
        for rows in {tile.rows, tile.few_rows}:
            each = rows * tile.vectors
            loops = [b for b in blocks if len(re.findall("pmaddwd|vpdp", b)) == each]
            assert loops
            assert not [s for b in loops for s in b.splitlines() if spill.search(s)]


@pytest.fixture
def small_blocks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Many blocks even of small products, packed once, before, or for each."""
    once, before = request.param
    limit = POOL.limit
    with pytest.MonkeyPatch.context() as patch:
        cut_everything(patch)
        for name, value in {
            "RUN": 32,
            "BLOCK_ROWS": 16,
            "BLOCK_COLUMNS": 48,
            "PACKED_B_BYTES": once << 30,
            "PACKED_BEFORE_BYTES": before << 30,
        }.items():
            patch.setattr(gemm, name, value)
        POOL.set_limit(16)
        yield
    POOL.set_limit(limit)


def compiled(f: Any, args: list[Array], passes: Any = STANDARD) -> Executable:
    return compile_graph(wf.compile(f).trace(*args), passes=passes)


@pytest.mark.share(3)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("small_blocks", [(0, 0), (1, 0), (1, 1)], indirect=True)
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("short", ["i8", "i16"])
def test_bits_in_random_cuts_and_on_threads(isa: str, short: str) -> None:
    rng = np.random.default_rng(0)
    for lead, k in (((), 131), ((3,), 258), ((), 1)):
        a, b = draw(rng, (*lead, 70, k), short), draw(rng, (k, 130), short)
        with using(isa):
            step = compiled(product, [a, b])
            POOL.set_limit(1)
            whole = step.run([a, b])
            np.testing.assert_array_equal(whole[0], truth(a, b))
            POOL.set_limit(16)
            same_in_cuts(step, [a, b], whole)
            for threads in (2, 16):
                POOL.set_limit(threads)
                assert_same_bits(step.run([a, b]), whole)


@pytest.mark.parametrize("transposed", [False, True])
def test_long_sums_are_cut_into_pieces(transposed: bool) -> None:
    rng = np.random.default_rng(0)
    a, b = draw(rng, (20, 9001), "i8"), draw(rng, (9001, 50), "i8")
    given = [np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)] if transposed else [a, b]
    flags = transposed, transposed
    f = lambda x, y: wf.matmul(x, y, *flags, preferred_element_type=wf.int32)  # noqa: E731
    step = compiled(f, given)
    assert [c.call.kernel.name for c in step.report.calls] == ["gemm_i8", "combine_sum_i32"]
    assert step.report.calls[0].call.units >= 4
    whole = step.run(given)
    np.testing.assert_array_equal(whole[0], truth(a, b))
    same_in_cuts(step, given, whole)


A, B = np.arange(-40, 40, dtype=np.int8).reshape(8, 10), np.ones((10, 17), np.int8)
I32 = wf.int32
#: (function, operands)
FORMS: dict[str, tuple[Any, list[Array]]] = {
    "astype": (lambda a, b: wf.astype(a, I32) @ wf.astype(b, I32), [A, B]),
    "reshaped since": (
        lambda a, b: (
            wf.reshape(wf.astype(a, I32), (4, 20)) @ wf.reshape(wf.astype(b, I32), (20, 1))
        ),
        [A, np.ones((10, 2), np.int8)],
    ),
    "heads": (
        lambda a, b: wf.einsum("bqhd,bkhd->bhqk", a, b, preferred_element_type=I32),
        [np.ones((2, 5, 3, 7), np.int8), np.ones((2, 6, 3, 7), np.int8)],
    ),
    "axes": (
        lambda a, b: wf.tensordot(a, b, axes=((0, 2), (1, 0)), preferred_element_type=I32),
        [np.ones((4, 5, 6), np.int8), np.ones((6, 4, 9), np.int8)],
    ),
    "itself": (lambda a: product(a, wf.matrix_transpose(a)), [A]),
    "a constant": (lambda a: product(a, (np.arange(170) % 7).astype(np.int8).reshape(10, 17)), [A]),
    "quantised before": (
        lambda x, b: product(wf.astype(wf.clip(wf.round(x * 20.0), -128, 127), wf.int8), b),
        [np.linspace(-5, 5, 80, dtype=np.float32).reshape(8, 10), B],
    ),
    "quantised before, for two dtypes": (
        lambda x, b, c: (lambda q: (product(q, b), product(q, c)))(
            wf.astype(wf.clip(wf.round(x * 20.0), -128, 127), wf.int8)
        ),
        [np.linspace(-5, 5, 80, dtype=np.float32).reshape(8, 10), B, B.astype(np.int16)],
    ),
    "two dtypes": (product, [A, B.astype(np.int16)]),
    "u8 by i8": (product, [np.arange(80, dtype=np.uint8).reshape(8, 10), B]),
    "wide in two products": (
        lambda a, b: (lambda w: (w @ wf.astype(b, I32), wf.astype(b[:, :8], I32) @ w))(
            wf.astype(a, I32)
        ),
        [A, B],
    ),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("passes", [STANDARD, REPRODUCIBLE], ids=["standard", "reproducible"])
def test_what_is_wide_is_not_stored(name: str, passes: Any) -> None:
    """Every product reads narrow integers, and gives what the eager call gives."""
    f, args = FORMS[name]
    step = compiled(f, args, passes)
    wanted = f(*args)
    many = wanted if isinstance(wanted, tuple) else (wanted,)
    for got, value in zip(step.run(args), many, strict=True):
        np.testing.assert_array_equal(got, np.asarray(value))
        assert got.dtype == np.int32
    names = [c.call.kernel.name for c in step.report.calls]
    products = [n for n in names if n.startswith("gemm")]
    assert len(products) == len(many)
    assert not {"gemm_i32", "gemm_u32"} & set(products)


def test_what_others_read_is_wide_too() -> None:
    """A sum of the rows beside the product (zero points) and a wide result do not stop it."""

    def f(a: Any, b: Any) -> Any:
        x = wf.astype(a, wf.int32)
        return x @ wf.astype(b, wf.int32), wf.sum(x, axis=1), x * 3

    step = compiled(f, [A, B])
    got = step.run([A, B])
    x = A.astype(np.int32)
    for value, wanted in zip(got, (truth(A, B), x.sum(1), x * 3), strict=True):
        np.testing.assert_array_equal(value, wanted)
    assert "gemm_i8" in [c.call.kernel.name for c in step.report.calls]


def test_a_constant_that_no_narrow_type_holds() -> None:
    w = np.full((10, 4), 1 << 20, np.int32)
    f = wf.compile(lambda a: wf.astype(a, wf.int32) @ w)
    np.testing.assert_array_equal(f(A).numpy(), A.astype(np.int32) @ w)
    assert "gemm_i32" in f.asm(A)


def test_weights_of_a_loop_stay_narrow() -> None:
    """Nothing is widened before the loop for the products in it."""

    def f(x: Any, w: Any) -> Any:
        def body(i: Any, s: Any) -> Any:
            return i + 1, wf.astype(wf.bitwise_right_shift(product(s, w), 7), wf.int8)

        return wf.while_loop(lambda i, s: i < 5, body, (0, x))[1]

    rng = np.random.default_rng(0)
    for n in (3, 90):
        x, w = draw(rng, (n, n), "i8"), draw(rng, (n, n), "i8")
        wanted = x
        for _ in range(5):
            wanted = (truth(wanted, w) >> 7).astype(np.int8)
        g = wf.compile(f)
        np.testing.assert_array_equal(g(x, w).numpy(), wanted)
        assert "gemm_i32" not in g.asm(x, w)
        assert "i32" not in g.ir(x, w).partition("scan(")[0]


def test_a_variable_that_is_written() -> None:
    """The product has the value of before the assignment."""
    v = wf.Variable(A, name="narrow")

    def step(b: Any) -> Any:
        x = wf.astype(v, wf.int32)
        v.assign(wf.zeros(A.shape, dtype=wf.int8))
        return x @ wf.astype(b, wf.int32)

    np.testing.assert_array_equal(wf.compile(step)(B).numpy(), truth(A, B))
    assert not np.asarray(v.numpy()).any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("short", ["i8", "i16"])
def test_nothing_outside_of_the_operands_is_read(isa: str, short: str) -> None:
    """Both end where memory ends that may be read, whatever their strides."""
    page = mmap.PAGESIZE
    memory = [mmap.mmap(-1, 5 * page) for _ in range(2)]
    starts = [ctypes.addressof(ctypes.c_char.from_buffer(m)) for m in memory]
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    dtype = as_dtype(short).numpy
    whole = [np.frombuffer(m, dtype, 4 * page // dtype.itemsize) for m in memory]
    for start, held in zip(starts, whole, strict=True):
        assert mprotect(start + 4 * page, page, 0) == 0  # PROT_NONE
        held[:] = np.arange(held.size) % 251 - 125
    flags = [(x, y) for x in (False, True) for y in (False, True)]
    product = {
        (ta, tb): wf.compile(
            lambda x, y, ta=ta, tb=tb: wf.matmul(x, y, ta, tb, preferred_element_type=wf.int32),
            target=isa,
        )
        for ta, tb in flags
    }
    for m, k, n in [(1, 1, 1), (3, 2, 5), (9, 67, 17), (13, 131, 1), (8, 64, 48), (5, 129, 15)]:
        for ta, tb in flags:
            a = whole[0][whole[0].size - m * k :].reshape((k, m) if ta else (m, k))
            b = whole[1][whole[1].size - k * n :].reshape((n, k) if tb else (k, n))
            wanted = truth(a.T if ta else a, b.T if tb else b)
            np.testing.assert_array_equal(product[ta, tb](a, b).numpy(), wanted)


def test_without_such_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is no x86 multiplies what is widened one by one."""
    monkeypatch.setattr(dots.elements_of_k, "__wrapped__", lambda dtype, bits: 1)
    dots.elements_of_k.cache_clear()
    tile_of.cache_clear()
    try:
        f = wf.compile(product)
        rng = np.random.default_rng(0)
        a, b = draw(rng, (40, 131), "i8"), draw(rng, (131, 50), "i8")
        np.testing.assert_array_equal(f(a, b).numpy(), truth(a, b))
        assert "pmulld" in f.asm(a, b)
        assert not re.search("pmaddwd|vpdp", f.asm(a, b))
    finally:
        monkeypatch.undo()
        dots.elements_of_k.cache_clear()
        tile_of.cache_clear()


def test_a_gpu_reads_what_is_narrow() -> None:
    assert all("narrow_products" in {p.__name__ for p in PIPELINES[name]}
               for name in ("gpu", "gpu_reproducible"))  # fmt: skip


# ------------------------------------------------------------------- preferred_element_type


X = np.arange(12, dtype=np.int8).reshape(3, 4) * 9
Y = np.arange(20, dtype=np.int8).reshape(4, 5) * 6
WAYS: dict[str, tuple[Any, Any]] = {
    "matmul": (wf.matmul, np.matmul),
    "dot": (wf.dot, np.dot),
    "inner": (lambda a, b, **k: wf.inner(a, wf.matrix_transpose(b), **k), np.matmul),
    "tensordot": (lambda a, b, **k: wf.tensordot(a, b, axes=1, **k), np.matmul),
    "einsum": (lambda a, b, **k: wf.einsum("ij,jk->ik", a, b, **k), np.matmul),
    "einsum of three": (
        lambda a, b, **k: wf.einsum("ij,jk,kl->il", a, b, np.eye(5, dtype=np.int8), **k), np.matmul,
    ),
    "vecdot": (
        lambda a, b, **k: wf.vecdot(a[:, None, :], wf.matrix_transpose(b)[None], **k), np.matmul,
    ),
}  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("preferred", [wf.int16, wf.int32, wf.int64, wf.float32, "float64"])
@pytest.mark.parametrize("compile_it", [False, True])
def test_all_products_take_it(name: str, preferred: Any, compile_it: bool) -> None:
    ours, theirs = WAYS[name]
    f = lambda a, b: ours(a, b, preferred_element_type=preferred)  # noqa: E731
    got = (wf.compile(f) if compile_it else f)(X, Y)
    kind = as_dtype(preferred).numpy
    assert got.dtype == as_dtype(preferred)
    np.testing.assert_array_equal(np.asarray(got), theirs(X.astype(kind), Y.astype(kind)))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_floats_are_not_rounded(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((9, 40), (40, 7)))
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    f = lambda a, b: wf.matmul(a, b, preferred_element_type=wf.float32)  # noqa: E731
    for g in (f, wf.compile(f)):
        got = np.asarray(g(a, b))
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    gradient = wf.grad(lambda a, b: wf.sum(f(a, b)))(a, b)
    assert gradient.dtype == as_dtype(dtype)


REFUSED = [
    (wf.int8, wf.uint8), (wf.int8, wf.uint32), (wf.int32, wf.int16), (wf.int64, wf.float32),
    (wf.uint8, wf.int8), (wf.float32, wf.int32), (wf.float32, wf.bfloat16),
    (wf.float32, wf.complex64), (wf.float16, wf.bfloat16), (wf.complex64, wf.float32),
    (wf.int8, wf.complex64), (wf.int8, wf.bool_),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "preferred"), REFUSED)
@pytest.mark.parametrize("name", sorted(set(WAYS) - {"einsum of three"}))
def test_types_that_do_not_hold_products(name: str, dtype: Any, preferred: Any) -> None:
    a, b = wf.ones((2, 3), dtype=dtype), wf.ones((3, 4), dtype=dtype)
    with pytest.raises(TypeRuleError, match="does not hold products of") as caught:
        WAYS[name][0](a, b, preferred_element_type=preferred)
    assert __file__.rsplit("/", 1)[-1] in str(caught.value)
