"""The dataflow executor and Session.run against TensorFlow (compat.v1, one thread, no optimisers).

    python benchmarks/executor.py [--json benchmarks/executor.json] [--rounds 30]

Needs tensorflow-cpu beside weft (it is in no extra: 250 MB, for this table alone). Graphs of 10,000
null ops; a time is that of one op, one iteration, or one run. weft's null ops are nodes of the
executor's own tables: its compiler would make one node, or none, of each of these graphs.
"""

from __future__ import annotations

import argparse
import ctypes
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import Comparison, Timing, compare, report

import weft as wf
from weft.ir.text.parser import parse_graph
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.nodes import Frame, Node, Tables
from weft.runtime.dataflow.state import State

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
NULL_OPS = 10_000
ITERATIONS = 100_000
Run = Callable[[], object]
COUNT = """
graph @count(%n: i64[], %x: i64[]) -> (i64[]) stage=dataflow {
  %e = enter(%x) {frame="w"} : i64[]
  %c = enter(%n) {frame="w", constant=true} : i64[]
  %m, %k = merge(%e) {loop=true} : i64[], i32[]
  %t = less(%m, %c) : bool[]
  %l = loop_cond(%t) : bool[]
  %f, %g = switch(%m, %l) : i64[], i64[]
  %r = exit(%f) : i64[]
  %one = constant() after(%g) {value=i64[] 1} : i64[]
  %a = add(%g, %one) : i64[]
  %z = next_iteration(%a, %m) : token
  return %r
}
"""


# --------------------------------------------------------------------------------------------- weft
def weft_run(nodes: list[Node], values: list[np.ndarray[Any, Any]]) -> Run:
    """A run of nodes without an IR; `values` are fed."""
    cells = [(ctypes.c_int64 * 8)(1 << 40, at.EXTERNAL, v.ctypes.data) for v in values]
    state = State(Tables(nodes, [Frame(-1)]), len(values), 1)
    for i, cell in enumerate(cells):
        state.feeds[i] = ctypes.addressof(cell)

    def run() -> object:
        root = state.start()
        assert state.run(1 << 60) == 0
        state.end(root)
        if state.fetches[0]:
            state.release(state.fetches[0])
            state.fetches[0] = 0
        return values, cells

    return run


def chain() -> list[Node]:
    """Each after the one before."""
    nodes = [Node(at.NO_OP, outputs=0)]
    for _ in range(NULL_OPS - 1):
        nodes.append(Node(at.NO_OP, control=[nodes[-1]], outputs=0))
    return nodes


def fan() -> list[Node]:
    """One, all others after it, one after those."""
    first = Node(at.NO_OP, outputs=0)
    middle = [Node(at.NO_OP, control=[first], outputs=0) for _ in range(NULL_OPS - 2)]
    return [first, *middle, Node(at.NO_OP, control=middle, outputs=0)]


def identities() -> list[Node]:
    """A tensor through a chain of identities."""
    nodes = [Node(at.FEED, number=0)]
    for _ in range(NULL_OPS):
        nodes.append(Node(at.IDENTITY, inputs=[nodes[-1].out()]))
    return [*nodes, Node(at.FETCH, inputs=[nodes[-1].out()], outputs=0)]


def diamonds() -> list[Node]:
    """Switch, an identity on each side, Merge; again and again."""
    x, pred = Node(at.FEED, number=0), Node(at.FEED, number=1)
    nodes = [x, pred]
    for _ in range(NULL_OPS // 4):
        switch = Node(at.SWITCH, inputs=[nodes[-1].out() if len(nodes) > 2 else x.out(),
                                         pred.out()], outputs=2)  # fmt: skip
        sides = [Node(at.IDENTITY, inputs=[switch.out(k)]) for k in range(2)]
        nodes += [switch, *sides, Node(at.MERGE, inputs=[s.out() for s in sides])]
    return [*nodes, Node(at.FETCH, inputs=[nodes[-1].out()], outputs=0)]


# --------------------------------------------------------------------------------------- TensorFlow
class TensorFlow:
    """The same graphs in TensorFlow's session."""

    def __init__(self) -> None:
        import tensorflow as tf

        self.tf = tf.compat.v1
        self.raw = tf.raw_ops
        self.tf.disable_eager_execution()
        self.tf.disable_control_flow_v2()

    def session(self) -> Any:
        """One thread, no optimisers."""
        tf = self.tf
        config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        return tf.Session(config=config)

    def callable(self, build: Callable[[], Any]) -> Run:
        """`make_callable` of what `build` makes in a graph of its own."""
        with self.tf.Graph().as_default():
            fetch = build()
            run = self.session().make_callable(fetch)
        return run  # type: ignore[no-any-return]

    def chain(self) -> Any:
        """Each after the one before."""
        op = self.tf.no_op()
        for _ in range(NULL_OPS - 1):
            with self.tf.control_dependencies([op]):
                op = self.tf.no_op()
        return op

    def fan(self) -> Any:
        """One, all others after it, one after those."""
        with self.tf.control_dependencies([self.tf.no_op()]):
            middle = [self.tf.no_op() for _ in range(NULL_OPS - 2)]
        return self.tf.group(*middle)

    def identities(self) -> Any:
        """A tensor through a chain of identities; only that it is done is fetched."""
        x = self.tf.constant(np.ones(4, np.float32))
        for _ in range(NULL_OPS):
            x = self.tf.identity(x)
        return x.op

    def diamonds(self) -> Any:
        """Switch, an identity on each side, Merge; again and again."""
        x, pred = self.tf.constant(np.ones(4, np.float32)), self.tf.constant(True)
        for _ in range(NULL_OPS // 4):
            sides = self.raw.Switch(data=x, pred=pred)
            x = self.raw.Merge(inputs=[self.tf.identity(s) for s in sides]).output
        return x.op

    def loop(self) -> Any:
        """A while that counts."""
        end = self.tf.constant(np.int64(ITERATIONS))
        return self.tf.while_loop(
            lambda i: i < end, lambda i: i + 1, [self.tf.constant(np.int64(0))]
        ).op


def per(comparison: Comparison, count: int) -> Comparison:
    """The times of one op or iteration."""
    scaled = {n: Timing(t.minimum / count, t.median / count) for n, t in comparison.timings.items()}
    return Comparison(comparison.workload, scaled)


def null_ops(tf: TensorFlow, rounds: int) -> list[Comparison]:
    """Graphs of null ops, and the empty loop."""
    tensor, true = np.ones(4, np.float32), np.array(True)
    graphs: list[tuple[str, list[Node], list[Any], Any]] = [
        ("no-op chain", chain(), [], tf.chain),
        ("no-op fan", fan(), [], tf.fan),
        ("identity chain", identities(), [tensor], tf.identities),
        ("Switch/Merge diamonds", diamonds(), [tensor, true], tf.diamonds),
    ]
    rows = []
    for name, nodes, values, build in graphs:
        runs = {"weft": weft_run(nodes, values), "tensorflow": tf.callable(build)}
        rows.append(per(compare(name, runs, rounds=rounds), NULL_OPS))
    step = DataflowStep(parse_graph(COUNT))
    n, zero = np.array(ITERATIONS), np.array(0)
    assert step.run([n, zero]) == [ITERATIONS]
    runs = {"weft": lambda: step.run([n, zero]), "tensorflow": tf.callable(tf.loop)}
    loop = compare("empty while, an iteration", runs, rounds=max(rounds // 5, 3))
    return [*rows, per(loop, ITERATIONS)]


def session_runs(tf: TensorFlow, rounds: int) -> list[Comparison]:
    """`run` and `make_callable` of a small cached step: 2 feeds, 2 fetches."""
    a = np.ones(4, np.float32)
    with wf.Graph().as_default() as graph:
        x, y = (wf.placeholder(wf.float32, [4], name=n) for n in "xy")
        fetches = [x + y, x * y]
    mine = wf.Session(graph=graph)
    with tf.tf.Graph().as_default():
        u, v = (tf.tf.placeholder(np.float32, [4]) for _ in "xy")
        theirs, given = tf.session(), [u + v, u * v]
        call = theirs.make_callable(given, [u, v])
        made = mine.make_callable(fetches, [x, y])
        runs = {
            "weft": lambda: mine.run(fetches, {x: a, y: a}),
            "tensorflow": lambda: theirs.run(given, {u: a, v: a}),
        }
        calls = {"weft": lambda: made(a, a), "tensorflow": lambda: call(a, a)}
        return [
            compare("Session.run, 2 feeds, 2 fetches", runs, rounds=rounds, inner=50),
            compare("make_callable, the same", calls, rounds=rounds, inner=50),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    tf = TensorFlow()
    rows = [*null_ops(tf, options.rounds), *session_runs(tf, options.rounds)]
    report("Executor: one op, iteration or run", rows, options.json)


if __name__ == "__main__":
    main()
