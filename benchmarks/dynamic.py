"""Ops whose results' sizes depend on values, and of strings: weft's eager calls against NumPy,
PyTorch (where it is installed) and Python; and a session's.

python benchmarks/dynamic.py [--json benchmarks/dynamic.json] [--rounds 15] [--only PART]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from harness import Comparison, compare, report

import weft as wf
from weft.ir.ops.strings import fingerprint64

Array = np.ndarray[Any, Any]
Contestants = Mapping[str, Callable[[], object]]
#: Elements, strings, and the elements of small calls.
MANY, STRINGS, FEW = 10**6, 10**5, 16


def in_session(make: Callable[[Any], Any], x: Array) -> Callable[[], object]:
    """A step that computes `make` of a feed."""
    with wf.Graph().as_default() as graph:
        fed = wf.placeholder(x.dtype, x.shape)
        made = make(fed)
    session = wf.Session(graph=graph)
    return lambda: session.run(made, {fed: x})


# ---------------------------------------------------------------------------------------- selection
def selection() -> dict[str, Contestants]:
    rng = np.random.default_rng(0)
    mask, x = rng.random(MANY) < 0.5, rng.random(MANY).astype(np.float32)
    counts, parts = rng.integers(0, 4, MANY), rng.integers(0, 4, MANY).astype(np.int32)
    places = rng.permutation(MANY)
    m, t, c, p, i = map(wf.asarray, (mask, x, counts, parts, places))

    def theirs(torch: Any) -> dict[str, Contestants]:
        tm, tt, tc, tp, ti = map(torch.from_numpy, (mask, x, counts, parts, places))
        return {
            "nonzero": {"torch": lambda: torch.nonzero(tm, as_tuple=True)},
            "a mask": {"torch": lambda: tt[tm]},
            "repeat": {"torch": lambda: torch.repeat_interleave(tt, tc)},
            "dynamic_partition, 4": {"torch": lambda: [tt[tp == k] for k in range(4)]},
            "dynamic_stitch": {"torch": lambda: torch.zeros(MANY).index_copy_(0, ti, tt)},
        }

    def stitched() -> Array:
        out = np.zeros(MANY, np.float32)
        out[places] = x
        return out

    mine: dict[str, Contestants] = {
        "nonzero": {
            "weft": lambda: wf.nonzero(m), "numpy": lambda: np.nonzero(mask),
            "session": in_session(lambda x: wf.nonzero(x)[0], mask),
        },
        "a mask": {
            "weft": lambda: t[m], "numpy": lambda: x[mask],
            "session": in_session(lambda x: x[x > 0.5], x),
        },
        "repeat": {"weft": lambda: wf.repeat(t, c), "numpy": lambda: np.repeat(x, counts)},
        "dynamic_partition, 4": {
            "weft": lambda: wf.tf1.dynamic_partition(t, p, 4),
            "numpy": lambda: [x[parts == k] for k in range(4)],
        },
        "dynamic_stitch": {"weft": lambda: wf.tf1.dynamic_stitch([i], [t]), "numpy": stitched},
    }  # fmt: skip
    return joined(mine, theirs)


def joined(
    mine: dict[str, Contestants], theirs: Callable[[Any], dict[str, Contestants]]
) -> dict[str, Contestants]:
    """`mine`, and PyTorch's where it is installed."""
    if find_spec("torch") is None:
        return mine
    import torch

    found = theirs(torch)
    return {name: {**row, **found.get(name, {})} for name, row in mine.items()}


# ------------------------------------------------------------------------------------------- unique
def distinct() -> dict[str, Contestants]:
    rng = np.random.default_rng(0)
    mine: dict[str, Contestants] = {}
    held = {
        "1000 distinct i64": rng.integers(0, 1000, MANY), "all distinct i64": rng.permutation(MANY),
        "all distinct f32": rng.permutation(MANY).astype(np.float32),
    }  # fmt: skip
    for name, x in held.items():
        t = wf.asarray(x)
        mine[f"unique_values, {name}"] = {
            "weft": partial(wf.unique_values, t), "numpy": partial(np.unique_values, x),
        }  # fmt: skip
        mine[f"unique_all, {name}"] = {
            "weft": partial(wf.unique_all, t), "numpy": partial(np.unique_all, x),
        }  # fmt: skip
    few_values = wf.asarray(held["1000 distinct i64"])
    mine["tf1.unique, 1000 distinct i64"] = {
        "weft": lambda: wf.tf1.unique(few_values),
        "session": in_session(lambda x: wf.tf1.unique(x).y, held["1000 distinct i64"]),
    }

    def theirs(torch: Any) -> dict[str, Contestants]:
        found: dict[str, Contestants] = {}
        for name, x in held.items():
            t = torch.from_numpy(x)
            found[f"unique_values, {name}"] = {"torch": partial(torch.unique, t)}
            found[f"unique_all, {name}"] = {
                "torch": partial(torch.unique, t, return_inverse=True, return_counts=True)
            }
        return found

    return joined(mine, theirs)


# ------------------------------------------------------------------------------------------ strings
def strings() -> dict[str, Contestants]:
    rng = np.random.default_rng(0)

    def texts(values: list[bytes]) -> Array:
        out = np.empty(len(values), object)
        out[:] = values
        return out

    words = texts([b"user%d/item%d" % (i, 7 * i) for i in range(STRINGS)])
    short = texts([b"%.6f" % v for v in rng.random(STRINGS)])
    long = texts([repr(float(v)).encode() for v in rng.random(STRINGS)])
    whole = texts([b"%d" % v for v in rng.integers(-(10**9), 10**9, STRINGS)])
    raw = texts([rng.bytes(400) for _ in range(STRINGS)])
    lines = texts([b"%d,%.4f,name%d,%d" % (i, i / 7, i, 3 * i) for i in range(STRINGS)])
    w, s, g, h, r, c = map(wf.asarray, (words, short, long, whole, raw, lines))
    defaults: list[Any] = [wf.int32, wf.float32, [""], wf.int64]

    def split() -> object:
        rows = [line.split(b",") for line in lines.tolist()]
        return [
            np.array([int(row[0]) for row in rows], np.int32),
            np.array([float(row[1]) for row in rows], np.float32), [row[2] for row in rows],
            np.array([int(row[3]) for row in rows], np.int64),
        ]  # fmt: skip

    return {
        "string_to_hash_bucket_fast": {
            "weft": lambda: wf.tf1.string_to_hash_bucket_fast(w, 1000),
            "python": lambda: [fingerprint64(x) % 1000 for x in words.tolist()],
            "python's hash": lambda: [hash(x) % 1000 for x in words.tolist()],
        },
        "string_to_number f32, 6 digits": {
            "weft": lambda: wf.tf1.string_to_number(s), "numpy": lambda: short.astype(np.float32),
        },
        "string_to_number f64, 17 digits": {
            "weft": lambda: wf.tf1.string_to_number(g, wf.float64),
            "numpy": lambda: long.astype(np.float64),
        },
        "string_to_number i64": {
            "weft": lambda: wf.tf1.string_to_number(h, wf.int64),
            "numpy": lambda: whole.astype(np.int64),
        },
        "decode_raw, 100 f32": {
            "weft": lambda: wf.tf1.decode_raw(r, wf.float32),
            "numpy": lambda: np.frombuffer(b"".join(raw.tolist()), np.float32).copy(),
        },
        "decode_csv, 4 columns": {
            "weft": lambda: wf.tf1.decode_csv(c, defaults), "python": split,
        },
    }  # fmt: skip


# ---------------------------------------------------------------------------------------- few of it
def few() -> dict[str, Contestants]:
    x = np.random.default_rng(0).integers(0, 9, FEW)
    t = wf.asarray(x)
    made: dict[str, Contestants] = {}
    for name in ("unique_values", "unique_counts", "unique_inverse", "unique_all", "argwhere"):
        ours, theirs = getattr(wf, name), getattr(np, name)
        made[f"{name} of {FEW}"] = {
            "weft": partial(ours, t), "numpy": partial(theirs, x),
        }  # fmt: skip
    made[f"repeat of {FEW}"] = {"weft": lambda: wf.repeat(t, t), "numpy": lambda: np.repeat(x, x)}
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="workloads with this in their names")
    options = parser.parse_args()
    rows: list[Comparison] = []
    for group in (selection, distinct, strings, few):
        for name, contestants in group().items():
            if options.only in name:
                inner = 300 if group is few else 1
                rows.append(compare(name, contestants, rounds=options.rounds, inner=inner))
    title = f"Sizes that depend on values ({MANY:,} elements), strings ({STRINGS:,})"
    report(title, rows, options.json)


if __name__ == "__main__":
    main()
