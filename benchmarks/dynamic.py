"""Ops whose results' sizes depend on values, of strings, and tf.train.Examples: weft's eager calls
against NumPy, PyTorch, TensorFlow and protobuf (where they are installed) and Python; a session's;
and how much Python another thread gets done meanwhile.

python benchmarks/dynamic.py [--json benchmarks/dynamic.json] [--rounds 15] [--only PART]
python benchmarks/dynamic.py --beside

TensorFlow may lie in an environment of its own, before which weft's is searched:

python -m venv /tmp/tfenv && /tmp/tfenv/bin/pip install tensorflow-cpu
PYTHONPATH=.:.venv/lib/python3.11/site-packages /tmp/tfenv/bin/python benchmarks/dynamic.py
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from harness import Comparison, compare, report

import weft as wf
from weft.ir.ops import OPS
from weft.ir.ops.strings import fingerprint64
from weft.runtime.dynamic import door

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
def texts(values: list[bytes]) -> Array:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def strings() -> dict[str, Contestants]:
    rng = np.random.default_rng(0)

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


def words() -> dict[str, Contestants]:
    """Strings of eight words, against the op's reference."""
    rng = np.random.default_rng(0)
    lines = [b" ".join(b"word%d" % v for v in row) for row in rng.integers(0, 5000, (STRINGS, 8))]
    x, many = texts(lines), np.full(STRINGS, 5)
    t, n = wf.asarray(x), wf.asarray(many)

    def by_reference(op: str, *arrays: Array, **attrs: Any) -> Callable[[], object]:
        reference = OPS[op].reference
        assert reference is not None
        return lambda: reference(arrays, attrs)

    rows = {"kind": "separator", "maxsplit": -1}
    return {
        "string_split, 8 words": {
            "weft": lambda: wf.tf1.string_split(t),
            "python": by_reference("string_split", x, delimiter=" ", skip_empty=True),
            "python's split": lambda: [line.split() for line in lines],
        },
        "strings.split, white space": {
            "weft": lambda: wf.strings.split(t),
            "python": by_reference("string_split_rows", x, pattern="", **rows),
        },
        "strings.split, 3 bytes": {
            "weft": lambda: wf.strings.split(t, " wo"),
            "python": by_reference("string_split_rows", x, pattern=" wo", **rows),
        },
        "substr": {
            "weft": lambda: wf.tf1.substr(t, n, n), "python": by_reference("substr", x, many, many),
        },
        "string_length": {
            "weft": lambda: wf.tf1.string_length(t), "python": by_reference("string_length", x),
        },
        "string_join of two": {
            "weft": lambda: wf.tf1.string_join([t, t], "-"),
            "python": by_reference("string_join", x, x, separator="-"),
        },
        "strings.lower of A to Z": {
            "weft": lambda: wf.strings.lower(t, ""),
            "python": by_reference("string_case", x, case="lower", ascii=True),
        },
        "strings.lower": {
            "weft": lambda: wf.strings.lower(t),
            "python": by_reference("string_case", x, case="lower", ascii=False),
        },
    }  # fmt: skip


# ----------------------------------------------------------------------------------------- Examples
#: What is parsed, and in batches of how many.
FEATURES = {
    "10 f32, i64, bytes": {
        "x": wf.FixedLenFeature([10], wf.float32), "n": wf.FixedLenFeature([], wf.int64),
        "s": wf.FixedLenFeature([], wf.string),
    },
    "784 f32": {"x": wf.FixedLenFeature([784], wf.float32)},
}  # fmt: skip
BATCHES = (1, 32, 1024)


def example(features: Mapping[str, wf.FixedLenFeature], i: int) -> bytes:
    rng = np.random.default_rng(i)
    values = {"x": rng.random(features["x"].shape), "n": i, "s": b"name%d" % i}
    return wf.data.encode_example({k: values[k] for k in features})


def records() -> dict[str, Contestants]:
    made: dict[str, Contestants] = {}
    for what, features in FEATURES.items():
        for count in BATCHES:
            x = texts([example(features, i) for i in range(count)])
            t = wf.asarray(x)
            made[f"parse_example, {what}, {count}"] = {
                "weft": partial(wf.tf1.parse_example, t, features),
                "python": partial(in_python, t, features),
                **peers(x, features),
            }
    return made


def in_python(t: wf.Tensor, features: Mapping[str, wf.FixedLenFeature]) -> object:
    """The same call, but without kernels."""
    before, door.MANY_EXAMPLES = door.MANY_EXAMPLES, 1 << 62
    try:
        return wf.tf1.parse_example(t, features)
    finally:
        door.MANY_EXAMPLES = before


def peers(x: Array, features: Mapping[str, wf.FixedLenFeature]) -> Contestants:
    """TensorFlow's op in a function, and protobuf's parser, which makes no arrays."""
    if find_spec("tensorflow") is None:
        return {}
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import tensorflow as tf

    spec = {k: tf.io.FixedLenFeature(f.shape, f.dtype.name) for k, f in features.items()}
    given, parse = tf.constant(x.tolist()), tf.function(lambda x: tf.io.parse_example(x, spec))
    message, held = tf.train.Example, x.tolist()
    return {
        "tensorflow": lambda: parse(given),
        "protobuf": lambda: [message.FromString(record) for record in held],
    }


# ------------------------------------------------------------------------------------ other threads
def loops_beside(run: Callable[[], object] | None, seconds: float) -> tuple[float, float]:
    """How often another thread goes round a loop of Python in a second, and how many calls of `run`
    there are in one meanwhile."""
    count, over = [0], threading.Event()

    def work() -> None:
        while not over.is_set():
            count[0] += 1

    other = threading.Thread(target=work)
    other.start()
    begun, calls = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        if run is None:
            time.sleep(seconds)
        else:
            run()
            calls += 1
    over.set()
    took = time.perf_counter() - begun
    other.join()
    return count[0] / took, calls / took


def beside() -> None:
    """Print how far another thread comes while this one parses and splits."""
    features = FEATURES["784 f32"]
    x = texts([example(features, i) for i in range(1024)] * 4)
    lines = texts([b"a line of some words %d" % i for i in range(STRINGS)])
    t, s = wf.asarray(x), wf.asarray(lines)
    reference = OPS["string_split"].reference
    assert reference is not None
    how = {"delimiter": " ", "skip_empty": True}
    runs: dict[str, Callable[[], object]] = {
        "parse_example, 4096 of 784 f32": lambda: wf.tf1.parse_example(t, features),
        "the same in Python": lambda: in_python(t, features),
        f"string_split of {STRINGS}": lambda: wf.tf1.string_split(s),
        "its reference, in Python": lambda: reference([lines], how),
    }
    for run in runs.values():
        run()
    for name, run in runs.items():
        shares, rates = [], []
        for _ in range(5):
            alone, _ = loops_beside(None, 0.5)
            loops, calls = loops_beside(run, 1.0)
            shares.append(loops / alone)
            rates.append(calls)
        print(
            f"{name}: another thread's loop at {100 * np.median(shares):.0f} % "
            f"({100 * min(shares):.0f} to {100 * max(shares):.0f}) of its rate alone, "
            f"{np.median(rates):.1f} calls/s meanwhile"
        )


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
    parser.add_argument("--beside", action="store_true", help="what another thread gets done")
    options = parser.parse_args()
    if options.beside:
        beside()
        return
    rows: list[Comparison] = []
    inner_calls = {few: 300, records: 10}
    for group in (selection, distinct, strings, words, records, few):
        for name, contestants in group().items():
            if options.only in name:
                inner = inner_calls.get(group, 1)
                rows.append(compare(name, contestants, rounds=options.rounds, inner=inner))
    title = f"Sizes that depend on values ({MANY:,} elements), strings ({STRINGS:,})"
    report(title, rows, options.json)


if __name__ == "__main__":
    main()
