"""Products of sparse matrices with dense ones on one thread, against SciPy: `wf.sparse.matmul`
compiled, of a SparseTensor and of a CSRMatrix, and their gradient; products of two sparse ones, and
their elementwise arithmetic.

Entries are drawn without repetition and are in row-major order, as SciPy's CSR has them. The
gradient is that of sum(c * (a @ b)) by values and b; SciPy has none, so what stands beside it is
the same by hand: two products for b and a sum of gathered rows by NumPy for the values. Of two
sparse matrices weft gives the entries of each row in order; SciPy does so where it is asked to. For
elementwise ops half of the entries of two are at the same places; compiled, weft does not know that
they are in order.

python benchmarks/sparse_tensor.py [--json FILE] [--rounds 30] [--only sparse_product elementwise]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse
from harness import Comparison, compare, report

import weft as wf

#: rows, columns, entries, columns of the dense operand (0: a vector).
SHAPES = (
    (10_000, 10_000, 100_000, 64), (10_000, 10_000, 100_000, 1), (10_000, 10_000, 100_000, 0),
    (10_000, 10_000, 100_000, 8), (10_000, 10_000, 1_000_000, 64), (1_000, 50_000, 20_000, 128),
    (100_000, 100, 300_000, 16),
)  # fmt: skip

#: rows, inner, columns, entries of both sparse operands.
SPARSE_SHAPES = (
    (10_000, 10_000, 10_000, 100_000, 100_000), (1_000, 1_000, 1_000, 10_000, 10_000),
    (100_000, 100, 1_000, 300_000, 2_000), (100, 100, 100, 500, 500),
)  # fmt: skip

#: Rows, columns, entries of both; 0.
ELEMENTWISE_SHAPES = (
    (100, 100, 500, 0), (1_000, 1_000, 10_000, 0), (10_000, 10_000, 100_000, 0),
)  # fmt: skip


def drawn(rows: int, columns: int, count: int, width: int) -> tuple[Any, ...]:
    """SciPy's matrix, its two forms of weft's, and a dense operand for each side."""
    rng = np.random.default_rng(0)
    places = np.sort(rng.choice(rows * columns, count, replace=False))
    row, column = places // columns, places % columns
    values = rng.standard_normal(count, dtype=np.float32)
    csr = scipy.sparse.csr_matrix((values, (row, column)), shape=(rows, columns))
    coo = wf.SparseTensor(np.stack([row, column], axis=1), values, (rows, columns))
    own = wf.sparse.CSRMatrix(csr.indptr, csr.indices, csr.data, csr.shape)
    tail = (width,) if width else ()
    b = rng.standard_normal((columns, *tail), dtype=np.float32)
    c = rng.standard_normal((rows, *tail), dtype=np.float32)
    return csr, coo, own, b, c


def product(size: tuple[int, ...], rounds: int) -> Comparison:
    """a @ b."""
    csr, coo, own, b, _ = drawn(*size)
    f = wf.compile(lambda a, b: a @ b, threads=1)
    mine = wf.asarray(b)
    np.testing.assert_allclose(f(coo, mine), csr @ b, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(f(own, mine), csr @ b, rtol=1e-3, atol=1e-3)
    contestants: dict[str, Callable[[], Any]] = {
        "weft": lambda: f(coo, mine),
        "weft CSR": lambda: f(own, mine),
        "scipy": lambda: csr @ b,
    }
    return compare(title("product", size), contestants, rounds=rounds, inner=3)


def gradient(size: tuple[int, ...], rounds: int) -> Comparison:
    """Those of the values and of b."""
    csr, coo, _, b, c = drawn(*size)
    transposed = csr.T.tocsr()
    row, column = (np.ascontiguousarray(i) for i in coo.indices.numpy().T)

    def loss(values: Any, a: Any, b: Any, c: Any) -> Any:
        return wf.sum(c * (a.with_values(values) @ b))

    f = wf.compile(wf.grad(loss, argnums=(0, 2)), threads=1)
    given = [wf.asarray(x) for x in (coo.values, b, c)]

    def by_hand() -> Any:
        return (c[row] * b[column]).sum(axis=-1) if c.ndim > 1 else c[row] * b[column], (
            transposed @ c
        )

    for got, right in zip(f(given[0], coo, *given[1:]), by_hand(), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-3, atol=1e-3)
    contestants: dict[str, Callable[[], Any]] = {
        "weft": lambda: f(given[0], coo, *given[1:]),
        "scipy": by_hand,
    }
    return compare(title("gradient", size), contestants, rounds=rounds, inner=1)


def lookup(size: tuple[int, ...], rounds: int) -> Comparison:
    """The sum of the rows of a table that each example names: SciPy's is a product with ones."""
    csr, coo, _, table, _ = drawn(*size)
    ids = wf.SparseTensor(coo.indices, coo.indices.numpy()[:, 1], coo.shape)
    ones = scipy.sparse.csr_matrix((np.ones_like(csr.data), csr.indices, csr.indptr), csr.shape)
    f = wf.compile(
        lambda table, ids: wf.nn.embedding_lookup_sparse(table, ids, combiner="sum"), threads=1
    )
    mine = wf.asarray(table)
    np.testing.assert_allclose(f(mine, ids), ones @ table, rtol=1e-3, atol=1e-3)
    contestants: dict[str, Callable[[], Any]] = {
        "weft": lambda: f(mine, ids),
        "scipy": lambda: ones @ table,
    }
    return compare(title("embedding_lookup_sparse", size), contestants, rounds=rounds, inner=1)


def sparse_product(size: tuple[int, ...], rounds: int) -> Comparison:
    """a @ b, both sparse."""
    rows, inner, columns, count, other = size
    x, a = drawn(rows, inner, count, 0)[:2]
    y, b = drawn(inner, columns, other, 0)[:2]
    f = wf.compile(wf.sparse.matmul, threads=1)
    room = int(np.diff(y.indptr)[x.indices].sum())
    with_room = wf.compile(lambda a, b: wf.sparse.matmul(a, b, nse=room), threads=1)

    def in_order() -> Any:
        made = x @ y
        made.sort_indices()
        return made

    want = in_order()
    for made in (wf.sparse.matmul(a, b), f(a, b)):
        np.testing.assert_array_equal(made.indices, np.stack(want.tocoo().coords, axis=1))
        np.testing.assert_allclose(made.values, want.data, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(wf.sparse.coalesce(with_room(a, b)).values, want.data, rtol=1e-3,
                               atol=1e-3)  # fmt: skip
    contestants: dict[str, Callable[[], Any]] = {
        "weft": lambda: wf.sparse.matmul(a, b),
        "weft compiled": lambda: f(a, b),
        "weft compiled, nse": lambda: with_room(a, b),
        "scipy": lambda: x @ y,
        "scipy, in order": in_order,
    }
    named = f"{rows}x{inner}, {count} entries, by {inner}x{columns}, {other}: {want.nnz}"
    return compare(f"sparse product {named}", contestants, rounds=rounds, inner=1)


def elementwise(size: tuple[int, ...], rounds: int) -> list[Comparison]:
    """Ops of two sparse matrices, and a square."""
    rows, columns, count, _ = size
    x, a = drawn(*size)[:2]
    rng = np.random.default_rng(1)
    places = rng.choice(rows * columns, count, replace=False)
    places[::2] = (a.indices.numpy() @ [columns, 1])[::2]
    places = np.unique(places)
    values = rng.standard_normal(len(places), dtype=np.float32)
    at = places // columns, places % columns
    y = scipy.sparse.csr_matrix((values, at), shape=(rows, columns))
    b = wf.SparseTensor(np.stack(at, axis=1), values, (rows, columns))
    ops: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
        "add": (wf.sparse.add, lambda: x + y),
        "multiply": (wf.sparse.multiply, lambda: x.multiply(y)),
        "maximum": (wf.sparse.maximum, lambda: x.maximum(y)),
        "square": (lambda a, b: a**2, lambda: x.power(2)),
    }
    found = []
    for name, (f, scipys) in ops.items():
        compiled = wf.compile(f, threads=1)
        for run in (f, compiled):
            made = wf.sparse.coalesce(run(a, b))
            at = tuple(made.indices.numpy().T)
            own = scipy.sparse.csr_matrix((made.values.numpy(), at), shape=x.shape)
            assert abs(own - scipys()).max() < 1e-5, name
        contestants: dict[str, Callable[[], Any]] = {
            "weft": partial(f, a, b),
            "weft compiled": partial(compiled, a, b),
            "scipy": scipys,
        }
        named = f"{name} {rows}x{columns}, {count} entries and {len(places)}"
        found.append(compare(named, contestants, rounds=rounds, inner=1))
    return found


def title(what: str, size: tuple[int, ...]) -> str:
    rows, columns, count, width = size
    dense = f"{columns}x{width}" if width else f"{columns}"
    return f"{what} {rows}x{columns}, {count} entries, by {dense}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="*", help="names of functions of this file")
    options = parser.parse_args()
    wf.set_num_threads(1)
    groups: dict[Callable[..., Any], tuple[tuple[int, ...], ...]] = {
        product: SHAPES, gradient: SHAPES[:1], lookup: SHAPES[:1],
        sparse_product: SPARSE_SHAPES, elementwise: ELEMENTWISE_SHAPES,
    }  # fmt: skip
    rows: list[Comparison] = []
    for measure, sizes in groups.items():
        if options.only and measure.__name__ not in options.only:
            continue
        for size in sizes:
            found = measure(size, options.rounds)
            rows += found if isinstance(found, list) else [found]
    report("Sparse products, float32, one thread", rows, options.json)


if __name__ == "__main__":
    main()
