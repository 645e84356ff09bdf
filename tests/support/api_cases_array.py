"""The table behind test_ops_api, second part: creation, shapes, indexing, sorting, products,
casts.
"""

from __future__ import annotations

import numpy as np
from api_cases import BIG, BOOL, CPLX, F32, INT, ROWS, SORTED, SQUARE, UNIT, VEC, Case, X, Y

import weft as wf

STACK = np.arange(24.0).reshape(2, 3, 4)
COL = np.array([[1, 2], [3, 0], [0, 0]])
PAIRS = np.array([[0, 1], [2, 3], [0, 1]])
UPDATES = np.array([10.0, -20.0, 30.0])


def _ufunc_at(ufunc, x, i, u):
    out = x.copy()
    ufunc.at(out, tuple(np.moveaxis(i, -1, 0)), u)
    return out


def _assigned(x, i, u):
    out = x.copy()
    for row, value in zip(i, u, strict=True):
        out[tuple(row)] = value
    return out


def _top(x):
    order = np.argsort(-x, axis=-1, kind="stable")[..., :2]
    return np.take_along_axis(x, order, -1), order


def _bottom(x):
    order = np.argsort(x, axis=-1, kind="stable")[..., :2]
    return np.take_along_axis(x, order, -1), order


def _largest(x):
    return np.max(x, axis=0, keepdims=True)


def _one_hot(i):
    return (i[..., None] == np.arange(4)).astype(np.float32)


CREATION = [
    Case("zeros", lambda: wf.zeros((2, 3)), lambda: np.zeros((2, 3), np.float32), ()),
    Case("ones", lambda: wf.ones(3, dtype=wf.int8), lambda: np.ones(3, np.int8), ()),
    Case("empty", lambda: wf.empty((0, 2)), lambda: np.zeros((0, 2), np.float32), ()),
    Case("full", lambda: wf.full((2,), 7), lambda: np.full((2,), 7), ()),
    Case("fill", lambda: wf.fill([2, 1], 0.5), lambda: np.full((2, 1), 0.5, np.float32), ()),
    Case("zeros_like", wf.zeros_like, np.zeros_like, (X,)),
    Case(
        "ones_like",
        lambda x: wf.ones_like(x, dtype="int16"),
        lambda x: np.ones_like(x, np.int16),
        (X,),
    ),
    Case("empty_like", wf.empty_like, np.zeros_like, (INT,)),
    Case("full_like", lambda x: wf.full_like(x, -2), lambda x: np.full_like(x, -2), (X,)),
    Case("arange", lambda: wf.arange(5), lambda: np.arange(5), ()),
    Case("arange:down", lambda: wf.arange(7, -3, -2), lambda: np.arange(7, -3, -2), ()),
    Case(
        "arange:float",
        lambda: wf.arange(0.5, 3, 0.25),
        lambda: np.arange(0.5, 3, 0.25).astype("f4"),
        (),
    ),
    Case("arange:none", lambda: wf.arange(3, 0), lambda: np.arange(3, 0), ()),
    Case("linspace", lambda: wf.linspace(-1, 2, 7), lambda: np.linspace(-1, 2, 7).astype("f4"), ()),
    Case(
        "linspace:open",
        lambda: wf.linspace(0.0, 1.0, 4, endpoint=False, dtype=wf.float64),
        lambda: np.linspace(0, 1, 4, endpoint=False),
        (),
    ),
    Case(
        "linspace:one",
        lambda: wf.linspace(3, 9, 1, dtype="float64"),
        lambda: np.linspace(3, 9, 1),
        (),
    ),
    Case(
        "linspace:tensor",
        lambda x: wf.linspace(x[0, 0], x[0, 1], 5),
        lambda x: np.linspace(x[0, 0], x[0, 1], 5),
        (X,),
    ),
    Case("eye", lambda: wf.eye(3, 4, k=-1), lambda: np.eye(3, 4, k=-1, dtype=np.float32), ()),
    Case("tril", lambda x: wf.tril(x, k=1), lambda x: np.tril(x, 1), (BIG,)),
    Case("triu", lambda x: wf.triu(x, k=-1), lambda x: np.triu(x, -1), (BOOL,)),
    Case(
        "iota",
        lambda: wf.iota((2, 3), 1, dtype="float32"),
        lambda: np.indices((2, 3))[1].astype("f4"),
        (),
    ),
    Case("meshgrid", wf.meshgrid, lambda *x: np.meshgrid(*x), (VEC, ROWS, SORTED)),
    Case(
        "meshgrid:ij",
        lambda *x: wf.meshgrid(*x, indexing="ij"),
        lambda *x: np.meshgrid(*x, indexing="ij"),
        (VEC, ROWS),
    ),
    Case("one_hot", lambda i: wf.one_hot(i, 4), _one_hot, (ROWS,)),
    Case(
        "one_hot:axis",
        lambda i: wf.one_hot(i, 4, axis=0, on_value=True, off_value=False),
        lambda i: np.moveaxis(_one_hot(i) > 0, -1, 0),
        (COL,),
    ),
    Case(
        "asarray", lambda x: wf.asarray(x, dtype=wf.float32), lambda x: x.astype(np.float32), (X,)
    ),
    Case(
        "constant",
        lambda: wf.constant([1, 2, 3, 4], shape=(2, 2)),
        lambda: np.array([[1, 2], [3, 4]]),
        (),
    ),
    Case(
        "constant:repeated",
        lambda: wf.constant(1.5, shape=(2, 2)),
        lambda: np.full((2, 2), 1.5, np.float32),
        (),
    ),
]

SHAPES = [
    Case("reshape", lambda x: wf.reshape(x, (4, -1)), lambda x: x.reshape(4, -1), (BIG,)),
    Case("flatten", wf.flatten, np.ravel, (BIG,)),
    Case(
        "permute_dims",
        lambda x: wf.permute_dims(x, (2, 0, -2)),
        lambda x: x.transpose(2, 0, 1),
        (BIG,),
    ),
    Case("transpose", wf.transpose, np.transpose, (BIG,)),
    Case("matrix_transpose", wf.matrix_transpose, np.matrix_transpose, (BIG,)),
    Case("swapaxes", lambda x: wf.swapaxes(x, 0, -1), lambda x: x.swapaxes(0, -1), (BIG,)),
    Case(
        "moveaxis",
        lambda x: wf.moveaxis(x, (0, 1), (-1, 0)),
        lambda x: np.moveaxis(x, (0, 1), (-1, 0)),
        (BIG,),
    ),
    Case(
        "expand_dims",
        lambda x: wf.expand_dims(x, (0, -1)),
        lambda x: np.expand_dims(x, (0, -1)),
        (X,),
    ),
    Case("squeeze", lambda x: wf.squeeze(x[:, None, :1], axis=1), lambda x: x[:, :1], (X,)),
    Case("squeeze:all", lambda x: wf.squeeze(x[None, :, None]), lambda x: x, (X,)),
    Case(
        "broadcast_to",
        lambda x: wf.broadcast_to(x, (2, 3, 4)),
        lambda x: np.broadcast_to(x, (2, 3, 4)),
        (X,),
    ),
    Case(
        "broadcast_arrays",
        wf.broadcast_arrays,
        lambda *x: list(np.broadcast_arrays(*x)),
        (X[:, :1].copy(), INT[0]),
    ),
    Case("shape", wf.shape, lambda x: np.array(x.shape), (BIG,)),
    Case("size", wf.size, lambda x: np.array(x.size), (BIG,)),
    Case("rank", wf.rank, lambda x: np.array(x.ndim), (BIG,)),
    Case("identity", wf.identity, lambda x: x, (X,)),
    Case(
        "concat",
        lambda *x: wf.concat(x, axis=1),
        lambda *x: np.concatenate(x, 1),
        (X, Y[:, :2].copy()),
    ),
    Case(
        "concat:flat",
        lambda *x: wf.concat(x, axis=None),
        lambda *x: np.concatenate(x, None),
        (X, VEC),
    ),
    Case("stack", lambda *x: wf.stack(x, axis=-1), lambda *x: np.stack(x, -1), (X, Y)),
    Case("split", lambda x: wf.split(x, 2, axis=1), lambda x: np.split(x, 2, 1), (X,)),
    Case("split:sizes", lambda x: wf.split(x, [1, 0, 2]), lambda x: np.split(x, [1, 1]), (X,)),
    Case("unstack", lambda x: wf.unstack(x, axis=1), lambda x: list(np.unstack(x, axis=1)), (X,)),
    Case("tile", lambda x: wf.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3)), (X,)),
    Case("tile:short", lambda x: wf.tile(x, 2), lambda x: np.tile(x, 2), (X,)),
    Case("repeat", lambda x: wf.repeat(x, 3, axis=1), lambda x: np.repeat(x, 3, 1), (X,)),
    Case(
        "repeat:each",
        lambda x: wf.repeat(x, [2, 0, 1], axis=0),
        lambda x: np.repeat(x, [2, 0, 1], 0),
        (X,),
    ),
    Case("repeat:flat", lambda x: wf.repeat(x, 2), lambda x: np.repeat(x, 2), (X,)),
    Case(
        "roll",
        lambda x: wf.roll(x, (1, -6), axis=(0, 1)),
        lambda x: np.roll(x, (1, -6), (0, 1)),
        (X,),
    ),
    Case("roll:flat", lambda x: wf.roll(x, 5), lambda x: np.roll(x, 5), (X,)),
    Case("flip", lambda x: wf.flip(x, axis=(0, -1)), lambda x: np.flip(x, (0, -1)), (BIG,)),
    Case("flip:all", wf.flip, np.flip, (BIG,)),
    Case(
        "pad",
        lambda x: wf.pad(x, ((1, 0), (2, 3)), constant_values=-1),
        lambda x: np.pad(x, ((1, 0), (2, 3)), constant_values=-1),
        (X,),
    ),
    *(
        Case(
            f"pad:{m}",
            lambda x, m=m: wf.pad(x, [[2, 1], [0, 2]], m),
            lambda x, m=m: np.pad(x, [[2, 1], [0, 2]], m),
            (X,),
        )
        for m in ("edge", "reflect", "symmetric")
    ),
    Case("rot90", lambda x: wf.rot90(x), np.rot90, (X,)),
    Case("diff", lambda x: wf.diff(x, axis=0, n=2), lambda x: np.diff(x, 2, 0), (X,)),
    Case(
        "diff:joined",
        lambda x, y: wf.diff(x, prepend=y, append=y[:, :1]),
        lambda x, y: np.diff(x, prepend=y, append=y[:, :1]),
        (X, Y),
    ),
    Case("rot90:3", lambda x: wf.rot90(x, 3, (2, 0)), lambda x: np.rot90(x, 3, (2, 0)), (BIG,)),
    Case("astype", lambda x: wf.astype(x, wf.int32), lambda x: x.astype(np.int32), (X * 10,)),
    Case("cast", lambda x: wf.cast(x, "bool"), lambda x: x.astype(bool), (INT,)),
    Case("bitcast", lambda x: wf.bitcast(x, wf.uint32), lambda x: x.view(np.uint32), (F32,)),
    Case("clip", lambda x: wf.clip(x, -0.5, 0.5), lambda x: np.clip(x, -0.5, 0.5), (X,)),
    Case("clip:low", lambda x: wf.clip(x, min=0), lambda x: np.maximum(x, 0), (INT,)),
    Case(
        "clip_by_value", lambda x: wf.clip_by_value(x, -0.1, 2), lambda x: np.clip(x, -0.1, 2), (X,)
    ),
    Case("fma", wf.fma, lambda x, y, z: x * y + z, (X[:2, :3].copy(), Y[0, :3].copy(), 2.0)),
    Case("where", wf.where, np.where, (BOOL, X[:2, :3].copy(), Y[0, :3].copy())),
    Case("stop_gradient", wf.stop_gradient, lambda x: x, (X,)),
]

INDEXING = [
    Case("take", lambda x, i: wf.take(x, i, axis=1), lambda x, i: np.take(x, i, 1), (X, COL)),
    Case("gather", wf.gather, lambda x, i: x[i], (X, ROWS)),
    Case(
        "take_along_axis",
        lambda x, i: wf.take_along_axis(x, i, axis=1),
        lambda x, i: np.take_along_axis(x, i, 1),
        (X, COL),
    ),
    Case(
        "take_along_axis:wide",
        lambda x, i: wf.take_along_axis(x, i, axis=0),
        lambda x, i: np.take_along_axis(x, i, 0),
        (X, np.array([[1], [0]])),
    ),
    Case("gather_nd", wf.gather_nd, lambda x, i: x[i[..., 0], i[..., 1]], (STACK, PAIRS % 2)),
    Case(
        "scatter_nd_add",
        wf.scatter_nd_add,
        lambda x, i, u: _ufunc_at(np.add, x, i, u),
        (X, PAIRS, UPDATES),
    ),
    Case(
        "scatter_nd_min",
        wf.scatter_nd_min,
        lambda x, i, u: _ufunc_at(np.minimum, x, i, u),
        (X, PAIRS, UPDATES),
    ),
    Case(
        "scatter_nd_max",
        wf.scatter_nd_max,
        lambda x, i, u: _ufunc_at(np.maximum, x, i, u),
        (X, PAIRS, UPDATES),
    ),
    Case("scatter_nd_update", wf.scatter_nd_update, _assigned, (X, PAIRS, UPDATES)),
    Case(
        "scatter_nd",
        lambda i, u: wf.scatter_nd(i, u, (3, 4)),
        lambda i, u: _ufunc_at(np.add, np.zeros((3, 4)), i, u),
        (PAIRS, UPDATES),
    ),
    Case(
        "segment_sum",
        lambda x, i: wf.segment_sum(x, i, 4),
        lambda x, i: _ufunc_at(np.add, np.zeros((4, 4)), i[:, None], x),
        (X, np.array([2, 0, 2])),
    ),
    Case(
        "segment_mean",
        lambda x, i: wf.segment_mean(x, segment_ids=i, num_segments=4),
        lambda x, i: np.stack([x[1], 0 * x[1], (x[0] + x[2]) / 2, 0 * x[1]]),
        (X, np.array([2, 0, 2])),
    ),
    Case(
        "segment_max",
        lambda x, i: wf.segment_max(x, i, 4),
        lambda x, i: _ufunc_at(np.maximum, np.full((4, 4), -np.inf), i[:, None], x),
        (X, np.array([2, 0, 2])),
    ),
    Case(
        "segment_min",
        lambda x, i: wf.segment_min(x, i, 4),
        lambda x, i: _ufunc_at(np.minimum, np.full((4, 4), np.inf), i[:, None], x),
        (X, np.array([2, 0, 2])),
    ),
    Case("sort", lambda x: wf.sort(x, axis=0), lambda x: np.sort(x, 0), (X,)),
    Case("sort:descending", lambda x: wf.sort(x, descending=True), lambda x: -np.sort(-x), (X,)),
    Case("argsort", wf.argsort, lambda x: np.argsort(x, kind="stable"), (VEC,)),
    Case(
        "argsort:descending",
        lambda x: wf.argsort(x, descending=True),
        lambda x: np.argsort(-x, kind="stable"),
        (VEC,),
    ),
    Case("searchsorted", wf.searchsorted, np.searchsorted, (SORTED, X)),
    Case(
        "searchsorted:right",
        lambda a, v: wf.searchsorted(a, v, side="right", sorter=np.argsort(VEC)),
        lambda a, v: np.searchsorted(a, v, "right", np.argsort(VEC)),
        (VEC, X),
    ),
    Case("top_k", lambda x: tuple(wf.top_k(x, 2)), _top, (X,)),
    Case("top_k:smallest", lambda x: tuple(wf.top_k(x, k=2, largest=False)), _bottom, (X,)),
    Case("top_k:axis", lambda x: wf.top_k(x, 1, axis=0, sorted=False)[0], _largest, (X,)),
]

LINALG = [
    Case("matmul", wf.matmul, np.matmul, (X, Y.T.copy())),
    Case("matmul:vectors", wf.matmul, np.matmul, (VEC, SORTED)),
    Case("matmul:vector", wf.matmul, np.matmul, (SQUARE, VEC[:3].copy())),
    Case("matmul:row", wf.matmul, np.matmul, (VEC[:3].copy(), BIG.astype(np.float64))),
    Case(
        "matmul:batch",
        wf.matmul,
        np.matmul,
        (STACK, RNG_STACK := np.random.default_rng(1).normal(size=(5, 1, 4, 2))),
    ),
    Case(
        "matmul:transposed",
        lambda a, b: wf.matmul(a, b, True, True),
        lambda a, b: a.T @ b.T,
        (X, SQUARE),
    ),
    Case("dot", wf.dot, np.dot, (STACK, RNG_STACK[0])),
    Case("dot:scalar", lambda x: wf.dot(2.0, x), lambda x: 2 * x, (X,)),
    Case("inner", wf.inner, np.inner, (STACK, X)),
    Case("outer", wf.outer, np.outer, (VEC, SORTED)),
    Case("vecdot", lambda a, b: wf.vecdot(a, b), lambda a, b: np.vecdot(a, b), (CPLX, Y)),
    Case(
        "tensordot",
        wf.tensordot,
        lambda a, b: np.tensordot(a, b, 2),
        (BIG, X[..., None].astype(np.float32)),
    ),
    Case(
        "tensordot:axes",
        lambda a, b: wf.tensordot(a, b, axes=((1, 0), (0, 2))),
        lambda a, b: np.tensordot(a, b, ((1, 0), (0, 2))),
        (STACK, np.ones((3, 5, 2))),
    ),
    Case(
        "tensordot:none",
        lambda a, b: wf.tensordot(a, b, axes=0),
        lambda a, b: np.tensordot(a, b, 0),
        (VEC, SORTED),
    ),
    Case("cross", wf.cross, np.cross, (SQUARE, UNIT[:, :3].copy())),
    Case("diag", lambda x: wf.diag(x, -2), lambda x: np.diag(x, -2), (VEC,)),
    Case("diag:matrix", lambda x: wf.diag(x, 1), lambda x: np.diag(x, 1), (X,)),
    Case(
        "diagonal",
        lambda x: wf.diagonal(x, offset=-1),
        lambda x: np.diagonal(x, -1, -2, -1),
        (BIG,),
    ),
    Case("trace", lambda x: wf.trace(x, offset=1), lambda x: np.trace(x, 1, -2, -1), (BIG,)),
    Case(
        "matrix_power",
        lambda x: wf.linalg.matrix_power(x, 5),
        lambda x: np.linalg.matrix_power(x, 5),
        (SQUARE,),
    ),
    Case("matrix_power:0", lambda x: wf.linalg.matrix_power(x, 0), lambda x: np.eye(3), (SQUARE,)),
    *(
        Case(
            f"matrix_norm:{o}",
            lambda x, o=o: wf.linalg.matrix_norm(x, ord=o),
            lambda x, o=o: np.linalg.matrix_norm(x, ord=o),
            (BIG.astype("f8"),),
        )
        for o in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)
    ),
    *(
        Case(
            f"vector_norm:{o}",
            lambda x, o=o: wf.linalg.vector_norm(x, axis=1, keepdims=True, ord=o),
            lambda x, o=o: np.linalg.vector_norm(x, axis=1, keepdims=True, ord=o),
            (CPLX,),
            64,
        )
        for o in (0, 1, 2, 3, 0.5, np.inf, -np.inf)
    ),
]

EINSUM = [
    Case(
        f"einsum:{text}",
        lambda *x, t=text: wf.einsum(t, *x),
        lambda *x, t=text: np.einsum(t, *x),
        tuple(np.random.default_rng(i).normal(size=s) for i, s in enumerate(shapes)),
        256,
    )
    for text, shapes in [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("ba", [(2, 3)]),
        ("ii", [(3, 3)]),
        ("ii->i", [(3, 3)]),
        ("iij->j", [(3, 3, 2)]),
        ("ij->", [(2, 3)]),
        ("i,i", [(3,), (3,)]),
        ("i,j->ji", [(3,), (4,)]),
        ("ij,kj->ik", [(2, 3), (4, 3)]),
        ("bij,bjk->bik", [(5, 2, 3), (5, 3, 4)]),
        ("...ij,...jk", [(5, 2, 3), (3, 4)]),
        ("i...,i...->...", [(3, 2), (3, 4, 2)]),
        ("...", [(2, 3)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ij,ij,ij->i", [(3, 4), (3, 4), (3, 4)]),
        ("abc,cd,de,ea->b", [(2, 3, 4), (4, 5), (5, 6), (6, 2)]),
        ("...i,...i->...", [(4, 1, 3), (5, 3)]),
        ("i,->i", [(3,), ()]),
        ("ijk,jil->kl", [(2, 3, 4), (3, 2, 5)]),
        ("ab,ab,c->", [(2, 3), (2, 3), (4,)]),
    ]
]
