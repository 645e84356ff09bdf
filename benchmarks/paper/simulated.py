"""The paper's cluster in the simulator (`weft/passes/placement/simulate.py`), for figures 6 to 8,
and the numbers of the paper that it is fitted to and held against.

Fitted are the time of a message and the rate of a link, to null steps of *one* worker; for
Inception the computing time, what applying a gradient takes, and stragglers, to the steps with
backup workers. All else is prediction.

The paper's numbers are those that its text says, section by section, as ../shared/paper/note-A.txt
has it (the version of May 2016, whose figures these are; slides.txt has a later one, whose figure 7
is this one's 6). Where the two differ, note A is taken; ../shared/research/peers.md says why.
"""

from __future__ import annotations

from dataclasses import replace

import inception
import numpy as np
from table1_nets import Shapes

from weft.passes.placement import Links
from weft.passes.placement.simulate import Cluster, Transfer, Workload, simulate, with_stragglers

#: Section 6.2, figure 6: the median null step over 16 servers, (workers, seconds). Sparse: "5 to
#: 20 ms", which does not depend on the table's size; the ends are taken for those of the curve.
NULL = {
    "scalar": ((1, 1.8e-3), (100, 8.8e-3)),
    "dense 100 MB": ((1, 147e-3), (100, 613e-3)),
    "dense 1 GB": ((1, 1.01), (100, 7.16)),
    "sparse 1 GB": ((1, 5e-3), (100, 20e-3)),
    "sparse 16 GB": ((1, 5e-3), (100, 20e-3)),
}
NULL_SERVERS = 16
#: Section 6.3, figure 7: Inception-v3 over 17 servers: images per second with 200 workers, and by
#: how much the median synchronous step is longer than the asynchronous one.
IMAGES = (200, 2300.0)
SYNCHRONOUS = 1.10
#: Section 6.3, figure 8: of 50 workers and b backups the shortest step is that of b = 4, 1.93 s, a
#: fifth backup makes it slightly longer, and the best normalised speed-up is 9.5 % with b = 3.
BEST_STEP, BEST_SPEEDUP = (4, 1.93), (3, 1.095)
INCEPTION_SERVERS, BATCH, INCEPTION_BYTES = 17, 32, 95e6
GROUPS = 6


def null_workload(kind: str) -> Workload:
    """The null step: parameters to the worker, and an update back: of a table's 32 rows of 2048
    floats all, however large the table is; of dense parameters a number for each server, since with
    all of them the links would have to carry 2 GB/s."""
    each = {"scalar": 4.0 * NULL_SERVERS, "dense 100 MB": 100e6, "dense 1 GB": 1e9}
    rows = 32 * 8192.0
    return Workload.even(NULL_SERVERS, each.get(kind, rows), 64.0 if kind in each else rows, 0.0)


def paper_cluster() -> Cluster:
    """The paper's machines: the time of a message from the scalar step of one worker, the rate of a
    link from the dense one of 1 GB."""
    rate = 1e9 / NULL["dense 1 GB"][0][1]
    guess = Cluster(Links(latency_s=50e-6, bytes_per_s=rate, message_s=100e-6), cores=8)
    target = NULL["scalar"][0][1]
    for _ in range(20):
        got = simulate(null_workload("scalar"), 1, guess, steps=3).median
        new = guess.links.message_s * target / got
        guess = replace(guess, links=replace(guess.links, message_s=new))
    return guess


def inception_step(overlapped: bool) -> Workload:
    """A step of one worker on the paper's machines. Fitted: computing time, what applying takes,
    stragglers. overlapped: transfers and computing, layer by layer, as in TensorFlow, where each op
    runs when its own operands are there; else as in weft, where all that a worker computes with the
    parameters is one region, which begins with the last of them and ends before the first gradient
    goes (docs/internals/placement.md)."""
    load = Workload.even(INCEPTION_SERVERS, INCEPTION_BYTES, INCEPTION_BYTES, 1.39)
    if overlapped:
        load = replace(load, compute_s=1.68).overlapped(*layered(INCEPTION_BYTES))
    load = replace(load, apply_s=(0.01,) * INCEPTION_SERVERS)
    return with_stragglers(load, 0.035, 0.09, 1.2)


def layered(nbytes: float) -> tuple[list[Transfer], list[Transfer]]:
    """So many bytes of parameters and gradients as `GROUPS` groups of neighbouring layers of
    Inception-v3, of about as many bytes each, spread evenly over the servers: a group is needed
    when the work of all before it is done, and its gradients are made when that of all after it is,
    forward, which is a third, and backward."""
    found = Shapes(inception.IMAGE, 3).walk(inception.net().layers)
    sizes = [int(np.prod(w)) + w[-1] for w in found.weights[::2]]  # with its offsets
    works, held, done = np.cumsum(found.works) / found.work, np.cumsum(sizes) / sum(sizes), 0.0
    gets, gives, first = [], [], 0
    for group in range(1, GROUPS + 1):
        last = int(np.searchsorted(held, group / GROUPS - 1e-9))
        part = float(held[last] - (held[first - 1] if first else 0.0))
        share = part * nbytes / INCEPTION_SERVERS
        for server in range(INCEPTION_SERVERS):
            gets.append(Transfer(server, share, done / 3))
            gives.append(Transfer(server, share, 1 - done * 2 / 3))
        first, done = last + 1, float(works[last])
    return gets, gives
