"""Embedding tables in shards (the paper, section 4.2): dynamic_partition, a gather per shard,
dynamic_stitch; values and gradients are those of one table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import weft as wf

SHARDS, ROWS, WIDTH = 3, 12, 4
TABLE = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
IDS = {
    "all shards": [0, 5, 7, 2, 11, 5],
    "one shard": [3, 6, 3],
    "two shards": [1, 2, 4, 10],
    "none": [],
    "a matrix": [[1, 2, 3], [9, 9, 9]],
}


def shards_of(table: Any) -> list[Any]:
    """Row i lies in shard i mod SHARDS."""
    return [table[k::SHARDS] for k in range(SHARDS)]


def lookup(shards: list[wf.Tensor], ids: wf.Tensor) -> wf.Tensor:
    """The rows of the whole table, from where they lie."""
    flat = wf.reshape(ids, (-1,))
    place = wf.reshape(wf.arange(flat.shape[0]), flat.shape)
    owner = wf.remainder(flat, SHARDS)
    which = wf.dynamic_partition(wf.floor_divide(flat, SHARDS), owner, SHARDS)
    rows = [wf.gather(table, own) for table, own in zip(shards, which, strict=True)]
    whole = wf.dynamic_stitch(wf.dynamic_partition(place, owner, SHARDS), rows)
    return wf.reshape(whole, (*ids.shape, WIDTH))


def loss(rows: wf.Tensor) -> wf.Tensor:
    return wf.sum(wf.sin(rows) * rows)


@pytest.mark.parametrize("name", IDS)
def test_eagerly(name: str) -> None:
    ids = np.asarray(IDS[name], np.int32)
    shards = [wf.asarray(s) for s in shards_of(TABLE)]
    assert_array_equal(lookup(shards, wf.asarray(ids)), TABLE[ids])
    parts = wf.grad(lambda *tables: loss(lookup(list(tables), wf.asarray(ids))), (0, 1, 2))(*shards)
    whole = wf.grad(lambda table: loss(wf.gather(table, wf.asarray(ids))))(wf.asarray(TABLE))
    for part, wanted in zip(parts, shards_of(np.asarray(whole)), strict=True):
        assert_allclose(np.asarray(part), wanted, rtol=1e-6)


@pytest.mark.parametrize("rank", [1, 2])
def test_in_a_session(rank: int) -> None:
    with wf.Graph().as_default():
        ids = wf.placeholder(wf.int32, [None] * rank)
        tables = [wf.Variable(s, name=f"shard_{k}") for k, s in enumerate(shards_of(TABLE))]
        dense = wf.Variable(TABLE, name="whole")
        rows, wanted = lookup([t.read() for t in tables], ids), wf.gather(dense, ids)
        parts, (whole,) = wf.gradients(loss(rows), tables), wf.gradients(loss(wanted), [dense])
        with wf.Session() as session:
            session.run(wf.global_variables_initializer())
            for given in IDS.values():
                array = np.asarray(given, np.int32)
                if array.ndim != rank:
                    continue
                fetches = [rows, wanted, parts, whole]
                got, expected, found, one = session.run(fetches, {ids: array})
                assert_array_equal(got, expected)
                for part, shard in zip(found, shards_of(_dense(one, TABLE.shape)), strict=True):
                    assert_allclose(_dense(part, shard.shape), shard, rtol=1e-6)


def _dense(found: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """A gradient that may be rows with indices."""
    if isinstance(found, np.ndarray):
        return found
    out = np.zeros(shape, np.float32)
    np.add.at(out, np.asarray(found.indices), np.asarray(found.values))
    return out


def test_training_moves_the_shards_as_the_whole_table() -> None:
    with wf.Graph().as_default():
        ids = wf.placeholder(wf.int32, [None])
        tables = [wf.Variable(s) for s in shards_of(TABLE)]
        dense = wf.Variable(TABLE)
        optimizer = wf.train.SGD(0.1)
        step = [
            optimizer.minimize(loss(lookup([t.read() for t in tables], ids)), var_list=tables),
            optimizer.minimize(loss(wf.gather(dense, ids)), var_list=[dense]),
        ]
        with wf.Session() as session:
            session.run(wf.global_variables_initializer())
            for given in ([0, 1, 2, 2, 7], [3, 3], [11, 10, 9, 8]):
                session.run(step, {ids: np.asarray(given, np.int32)})
            for table, wanted in zip(tables, shards_of(dense.numpy()), strict=True):
                assert_allclose(table.numpy(), wanted, rtol=1e-5)
        assert not np.array_equal(dense.numpy(), TABLE)
