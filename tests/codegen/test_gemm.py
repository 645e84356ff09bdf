"""weft's own matrix product: any sizes, layouts and dtypes, whatever way the work is cut."""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import re
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cut_calls import assert_same_bits, cut_everything, same_in_cuts
from example_counts import examples
from hypothesis import example, given
from hypothesis import strategies as st
from shares import every

import weft as wf
from weft.codegen.call import Address
from weft.codegen.llvm.jit import compile_kernels, kernel_asm
from weft.codegen.llvm.target import host_isas, using
from weft.codegen.products import calls, gemm
from weft.codegen.products.calls import product_of
from weft.codegen.products.gemm import gemm_kernel
from weft.codegen.tiles.micro_kernel import tile_of
from weft.ir.dtypes import as_dtype
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType
from weft.passes.fusion.fuse import fuse
from weft.runtime.native.executable import compile_graph
from weft.runtime.native.pool import POOL

Array = np.ndarray[Any, Any]
SIZES = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 16, 17, 31, 48, 49, 64, 97, 100])
DEPTHS = st.sampled_from([0, 1, 2, 3, 15, 16, 17, 33, 64, 255, 257, 300])
BATCHES = st.sampled_from([((), ()), ((3,), (3,)), ((3,), ()), ((), (2,)), ((2, 1), (3,))])
TYPES = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16,
    "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64,
    "c64": np.complex64, "c128": np.complex128,
}  # fmt: skip
#: Units in the last place of sums of |a| |b|; a sum of k terms in any order errs by at most k.
ROUNDING = {"f32": 2.0**-24, "f64": 2.0**-53, "f16": 2.0**-11, "bf16": 2.0**-8}


@pytest.fixture
def small_blocks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Many blocks even of small products: with and without packing."""
    direct, once, before = request.param
    limit = POOL.limit
    with pytest.MonkeyPatch.context() as patch:
        cut_everything(patch)
        for name, value in {
            "RUN": 32,
            "BLOCK_ROWS": 16,
            "BLOCK_COLUMNS": 48,
            "DIRECT_B_BYTES": direct << 30,
            "DIRECT_RUN_BYTES": 0,
            "PACKED_B_BYTES": once << 30,
            "PACKED_BEFORE_BYTES": before << 30,
            "NEAR_A_BYTES": 0,
        }.items():
            patch.setattr(gemm, name, value)
        POOL.set_limit(16)
        yield
    POOL.set_limit(limit)


def operands(
    batches: tuple[tuple[int, ...], tuple[int, ...]],
    sizes: tuple[int, int, int],
    flags: tuple[bool, bool],
    dtype: str,
    seed: int = 0,
) -> tuple[Array, Array]:
    m, n, k = sizes
    rng = np.random.default_rng(seed)
    shapes = [(k, m) if flags[0] else (m, k), (n, k) if flags[1] else (k, n)]
    out = []
    for batch, shape in zip(batches, shapes, strict=True):
        if dtype[0] in "iu":  # all bits: products wrap
            kind = np.dtype(TYPES[dtype])
            out.append(np.frombuffer(rng.bytes(math.prod((*batch, *shape)) * kind.itemsize), kind))
            out[-1] = out[-1].reshape(*batch, *shape)
            continue
        x = rng.standard_normal((*batch, *shape))
        out.append((x + 1j * x[::-1] if dtype[0] == "c" else x).astype(TYPES[dtype]))
    return out[0], out[1]


def product(a: Array, b: Array, flags: tuple[bool, bool]) -> Graph:
    builder = Builder([TensorType(as_dtype(x.dtype), x.shape) for x in (a, b)])
    attrs = {"transpose_a": flags[0], "transpose_b": flags[1]}
    results = builder.emit("matmul", list(builder.args), attrs)
    return builder.graph("product", ("a", "b"), results)


def bound(a: Array, b: Array, flags: tuple[bool, bool], dtype: str) -> Array:
    """How far a product in `dtype` may be from the exact one: k roundings of sum |a| |b|."""
    x, y = (np.abs(v.astype(np.float64)) for v in (a, b))
    x, y = np.swapaxes(x, -1, -2) if flags[0] else x, np.swapaxes(y, -1, -2) if flags[1] else y
    accumulated = (x.shape[-1] + 2) * ROUNDING["f64" if dtype == "f64" else "f32"]
    return np.asarray((x @ y) * (accumulated + ROUNDING[dtype]) + 1e-7)


def check(a: Array, b: Array, flags: tuple[bool, bool], dtype: str) -> None:
    graph = product(a, b, flags)
    (got,) = compile_graph(graph, passes=(fuse,)).run([a, b])
    if dtype not in ROUNDING:
        (wanted,) = interpret(graph, [a, b])
        if dtype[0] in "iu":
            assert_same_bits([got], [wanted])
        else:
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)
        return
    wide = [x.astype(np.float64) for x in (a, b)]
    (wanted,) = interpret(product(wide[0], wide[1], flags), wide)
    assert got.dtype == TYPES[dtype]
    assert got.shape == wanted.shape
    assert (np.abs(got.astype(np.float64) - wanted) <= bound(a, b, flags, dtype)).all()


@examples(240)
@given(
    BATCHES,
    st.tuples(SIZES, SIZES, DEPTHS),
    st.tuples(st.booleans(), st.booleans()),
    st.sampled_from(sorted(TYPES)),
)
@example(((), ()), (200, 130, 600), (True, False), "f32")
@example(((), ()), (200, 130, 600), (False, True), "f32")
@example(((), ()), (130, 200, 530), (True, True), "f16")
def test_against_the_interpreter(
    batches: tuple[tuple[int, ...], tuple[int, ...]],
    sizes: tuple[int, int, int],
    flags: tuple[bool, bool],
    dtype: str,
) -> None:
    check(*operands(batches, sizes, flags, dtype), flags, dtype)


WAYS = [(0, 0, 0), (0, 1, 0), (0, 1, 1), (1, 1, 1)]
NAMES = ["anew", "once", "before", "in place"]


@pytest.mark.parametrize("small_blocks", WAYS, indirect=True, ids=NAMES)
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i32", "i64", "u8", "i16"])
class TestSmallBlocks:
    @pytest.mark.share(6)
    @pytest.mark.parametrize("flags", [(a, b) for a in (False, True) for b in (False, True)])
    def test_against_the_interpreter(self, dtype: str, flags: tuple[bool, bool]) -> None:
        for batches, sizes in (
            (((), ()), (50, 101, 100)),
            (((2,), (2,)), (33, 64, 31)),
            (((3,), ()), (17, 49, 65)),
            (((), ()), (50, 64, 100)),
        ):
            check(*operands(batches, sizes, flags, dtype), flags, dtype)

    def test_bits_in_random_cuts_and_on_threads(self, dtype: str) -> None:
        stacks = (((3,), (3,)), ((), ()))
        for flags, batches in itertools.product(((False, False), (True, True)), stacks):
            a, b = operands(batches, (70, 130, 90), flags, dtype)
            step = compile_graph(product(a, b, flags), passes=(fuse,))
            POOL.set_limit(1)
            whole = step.run([a, b])
            POOL.set_limit(16)
            same_in_cuts(step, [a, b], whole)
            for threads in (2, 4, 16):
                POOL.set_limit(threads)
                assert_same_bits(step.run([a, b]), whole)


@pytest.mark.parametrize("flags", [(a, b) for a in (False, True) for b in (False, True)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_stay_in_their_row_and_column(bad: float, flags: tuple[bool, bool]) -> None:
    a, b = operands(((), ()), (9, 50, 33), flags, "f32")
    a = np.abs(a)
    a[(20, 8) if flags[0] else (8, 20)] = bad  # the last row
    b[(49, 3) if flags[1] else (3, 49)] = bad  # the last column
    (got,) = compile_graph(product(a, b, flags), passes=(fuse,)).run([a, b])
    assert not np.isfinite(got[8]).any()
    assert not np.isfinite(got[:, 49]).any()
    assert np.isfinite(got[:8, :49]).all()


@pytest.mark.share(2)
@pytest.mark.parametrize("seed", range(5))
def test_no_less_accurate_than_blas(seed: int) -> None:
    a, b = operands(((), ()), (64, 64, 4096), (False, False), "f32", seed)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    (got,) = compile_graph(product(a, b, (False, False)), passes=(fuse,)).run([a, b])
    blas = np.abs(a @ b - exact)
    assert np.sqrt(np.mean((got - exact) ** 2)) <= 1.25 * np.sqrt(np.mean(blas**2))


def test_sizes_are_arguments() -> None:
    """All sizes, flags and batches of a dtype share one kernel."""
    keys = set()
    for sizes, flags in (((3, 4, 5), (False, False)), ((700, 800, 900), (True, True))):
        a, b = operands(((), ()), sizes, flags, "f32")
        (op,) = product(a, b, flags).ops
        p = product_of(op)
        *_, call = calls.gemm_calls(p, *map(Address, (op.result, *op.operands)))
        keys.add(call.kernel.key)
    assert len(keys) == 1


@pytest.mark.share(4)
@pytest.mark.parametrize("flags", [(a, b) for a in (False, True) for b in (False, True)])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "u64"])
def test_long_sums_are_cut_into_pieces(dtype: str, flags: tuple[bool, bool]) -> None:
    """Pieces of k are units of their own, added up in order: threads share them, bits are the
    same."""
    a, b = operands(((), ()), (20, 50, 9001), flags, dtype)
    step = compile_graph(product(a, b, flags), passes=(fuse,))
    names = [c.call.kernel.name for c in step.report.calls]
    assert names == [f"gemm_{dtype}", f"combine_sum_{dtype}"]
    assert step.report.calls[0].call.units >= 4
    check(a, b, flags, dtype)
    whole = step.run([a, b])
    same_in_cuts(step, [a, b], whole)


@pytest.mark.parametrize(("m", "n"), [(2, 0), (0, 3), (0, 0)])
@pytest.mark.parametrize("dtype", ["f32", "i32"])
def test_long_sums_of_no_elements(dtype: str, m: int, n: int) -> None:
    a, b = operands(((), ()), (m, n, 9001), (False, False), dtype)
    check(a, b, (False, False), dtype)


@pytest.mark.share(6)
@pytest.mark.parametrize("isa", host_isas())
@pytest.mark.parametrize(
    ("dtype", "instruction"), [("f32", "vfmadd|mulps"), ("f64", "vfmadd|mulpd"), ("i32", "pmulld")]
)
def test_accumulators_stay_in_registers(isa: str, dtype: str, instruction: str) -> None:
    """The loops over k, of each tile that the kernel has, have one product for each vector of the
    tile and store nothing; where a mask costs something, one for whole vectors has none."""
    with using(isa):
        kernel, tile = gemm_kernel(dtype), tile_of(dtype)
        compile_kernels([kernel])
    blocks = re.split(r"^\.?L\S+:|^\S+:", kernel_asm(kernel.key), flags=re.M)
    spill = re.compile(r"v?mov\w+\s+%[xyz]mm\d+, -?\w*\(|v?mov\w+\s+-?\w*\(%r[sb]p\), %[xyz]mm")
    mask = re.compile(r"maskmov|%k\d|pcmp|blendv")
    forms = set(itertools.product((tile.rows, tile.few_rows), range(1, tile.vectors + 1)))
    wide = {(tile.wide.rows, tile.wide.vectors)} if tile.wide else set()
    for rows, vectors in forms | wide:
        found = [b for b in blocks if len(re.findall(instruction, b)) == rows * vectors]
        loops = [b for b in found if tile.mask_registers or not mask.search(b)]
        assert len(loops) >= sum(r * v == rows * vectors for r, v in forms | wide)
        assert not [line for b in loops for line in b.splitlines() if spill.search(line)]


@pytest.mark.parametrize("isa", every(2, host_isas()))
def test_nothing_outside_of_b_is_read(isa: str) -> None:
    """B ends where memory ends that may be read, wherever a row of it ends."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert mprotect(start + page, page, 0) == 0  # PROT_NONE
    f = wf.compile(lambda x, y: x @ y, target=isa)
    whole = np.frombuffer(memory, np.float32, page // 4)
    whole[:] = np.arange(page // 4) % 7
    for k, n in [
        (1, 1),
        (3, 2),
        (2, 3),
        (5, 7),
        (1, 17),
        (4, 9),
        (30, 31),
        (3, 49),
        (3, 64),
        (2, 100),
    ]:
        b = whole[page // 4 - k * n :].reshape(k, n)
        for m in (1, 2, 5, 6, 7, 8, 9, 11, 13):
            a = np.arange(m * k, dtype=np.float32).reshape(m, k) % 5
            np.testing.assert_array_equal(f(a, b), a @ b)


@pytest.mark.parametrize(
    "sizes", [(128, 800, 512), (1024, 1024, 1024), (32, 784, 100), (16, 512, 128), (800, 128, 512)]
)
def test_two_threads_have_similar_shares(sizes: tuple[int, int, int]) -> None:
    """One takes blocks from the front, the other from the back: neither has above two thirds."""
    m, k, n = sizes
    flags = (False, False)
    cut = gemm.blocking(gemm.dense_product("f32", (m, n, k), (0,), (0,), flags), tile_of("f32"))
    blocks = [
        min(cut.rows, m - i) * min(cut.columns, n - j)
        for j in range(0, n, cut.columns)
        for i in range(0, m, cut.rows)
    ]
    shares = [0, 0]
    while blocks:
        taker = int(shares[1] < shares[0])
        shares[taker] += blocks.pop(-taker)
    assert max(shares) <= m * n * 2 / 3


@pytest.mark.share(3)
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i32", "i64"])
@pytest.mark.parametrize("m", [1024, 1050, 2059])
def test_rows_that_are_pages_apart_are_packed_in_strips(dtype: str, m: int) -> None:
    """A is stored k x m: the rows of a block are neighbours, its steps of k 4 KB and more apart."""
    rng, held = np.random.default_rng(m), as_dtype(dtype).numpy
    a, b = (rng.integers(-4, 5, shape).astype(held) for shape in ((70, m), (70, 200)))
    product = wf.compile(lambda a, b: wf.matmul(a, b, transpose_a=True))
    sizes = gemm.dense_product(dtype, (m, 200, 70), (0,), (0,), (True, False))
    assert gemm.blocking(sizes, tile_of(dtype)).pack_a or m * held.itemsize < 4096
    wanted = (a.astype(np.float64).T @ b.astype(np.float64)).astype(held)  # sums are exact
    np.testing.assert_array_equal(np.asarray(product(a, b)), wanted)


def cut_of(m: int, n: int, k: int, flags: tuple[bool, bool] = (False, False)) -> Any:
    sizes = gemm.dense_product("f32", (m, n, k), (0,), (0,), flags)
    return gemm.blocking(sizes, tile_of("f32"))


@pytest.mark.skipif("x86-64-v4" not in host_isas(), reason="not an x86-64-v4 processor")
def test_four_vectors_of_columns_are_one_panel() -> None:
    """Of an AVX-512 tile's own three vectors and one more the rows of A would be read twice."""
    with using("x86-64-v4"):
        tile = tile_of("f32").wide
        assert tile is not None
        for m, k in ((1, 300), (64, 64), (25088, 256)):
            cut = cut_of(m, 64, k)
            assert cut.wide
            assert cut.columns == tile.columns
            assert cut.rows % tile.rows == 0
        # as wide as before, packed, rows of B inside cache lines, or a step of A pages away
        others = [cut_of(100, n, 64) for n in (48, 60, 65, 128)]
        others += [cut_of(100, 64, 64, (False, True)), cut_of(1024, 64, 64, (True, False))]
        assert not any(cut.wide for cut in others)
    with using("x86-64-v3"):
        assert not cut_of(25088, 64, 256).wide


@pytest.mark.parametrize("isa", host_isas())
def test_rows_of_a_are_asked_for_ahead(isa: str) -> None:
    """Of an A that is larger than the cache and whose rows are read where they are, not by SSE."""
    with using(isa):
        cut = cut_of(25088, 64, 256)
        rows = (tile_of("f32").wide if cut.wide else tile_of("f32")).rows
        assert cut.ahead == (0 if isa == "x86-64-v2" else rows * 256)
        assert cut_of(100, 64, 256).ahead == 0
        assert cut_of(25088, 64, 256, (True, False)).ahead == 0


@pytest.mark.skipif("x86-64-v4" not in host_isas(), reason="not an x86-64-v4 processor")
def test_rows_of_b_inside_cache_lines_are_packed() -> None:
    with using("x86-64-v4"):
        assert cut_of(1024, 100, 784).pack_b == gemm.PACKED_BEFORE
        in_place = [cut_of(1024, 112, 784), cut_of(100, 100, 784), cut_of(1024, 40, 784)]
        assert not any(cut.pack_b for cut in in_place)


@pytest.mark.skipif("x86-64-v4" not in host_isas(), reason="not an x86-64-v4 processor")
def test_products_of_few_steps_are_cut() -> None:
    """Ten steps of k are as long as the calls of the tiles and their stores."""
    flags = (False, True)
    op = product(*operands(((), ()), (1024, 100, 10), flags, "f32"), flags).block.ops[0]
    with using("x86-64-v4"):
        *_, call = calls.gemm_calls(product_of(op), *map(Address, (op.result, *op.operands)))
    assert call.chunk
