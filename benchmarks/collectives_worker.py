"""A member of collectives.py: adds arrays up with the others, as often as it is told to.

    python collectives_worker.py weft|tcp|compiled|gloo FOLDER RANK SIZE [PORT...]

Reads lines `<elements> <times>` and answers with the seconds of one call. gloo needs a Python that
has torch, and nothing of weft."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Makes a call out of a number of float32 elements.
Maker = Callable[[int], Callable[[], object]]


def weft_maker(folder: str, rank: int, size: int) -> Maker:
    """The transport alone, in place, as gloo's call is."""
    import numpy as np

    sys.path.insert(0, str(ROOT))
    from weft.comm.group import Call, Group
    from weft.comm.members import Remote

    remote = Remote(tuple(f"tcp://127.0.0.1:{port}" for port in sys.argv[5:]))
    group = Group(
        f"bench-{folder}", rank, size, timeout=120, remote=remote if sys.argv[5:] else None
    )
    call = Call("psum", "here")

    def make(count: int) -> Callable[[], object]:
        x = np.zeros(count, np.float32)
        return lambda: group.reduce(x, np.add, call, x)

    return make


def compiled_maker(folder: str, rank: int, size: int) -> Maker:
    """A compiled function of one psum, with a new array for its result."""
    import numpy as np

    sys.path.insert(0, str(ROOT))
    import weft as wf

    addresses = [f"ipc://{folder}/{k}" for k in range(size)]
    spec = wf.train.ClusterSpec({"worker": addresses})
    task = wf.train.ClusterTask(spec, "worker", rank)
    mesh = wf.Mesh({"i": size}, task=task, timeout=120)
    step = wf.compile(wf.shard_map(lambda x: wf.collectives.psum(x, "i"), mesh, None, None))

    def make(count: int) -> Callable[[], object]:
        x = np.zeros(count, np.float32)
        return lambda: step(x)

    return make


def gloo_maker(folder: str, rank: int, size: int) -> Maker:
    import torch
    from torch import distributed

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=size
    )

    def make(count: int) -> Callable[[], object]:
        x = torch.zeros(count)
        return lambda: distributed.all_reduce(x)

    return make


def main() -> None:
    kind, folder, rank, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    makers = {"weft": weft_maker, "tcp": weft_maker, "compiled": compiled_maker, "gloo": gloo_maker}
    make = makers[kind](folder, rank, size)
    print("here", flush=True)
    calls: dict[int, Callable[[], object]] = {}
    for line in sys.stdin:
        count, times = map(int, line.split())
        if count not in calls:
            calls[count] = make(count)
            calls[count]()
        started = time.perf_counter()
        for _ in range(times):
            calls[count]()
        print((time.perf_counter() - started) / times, flush=True)


if __name__ == "__main__":
    main()
