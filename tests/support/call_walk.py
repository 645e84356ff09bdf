"""Walks of first calls: the functions of weft that one enters, in order, with who called them.

`python tests/support/call_walk.py compile|session|cluster` runs a first call under a profiler in a
process without caches and prints a line of JSON for each function at its first entry:
[file, qualified name, files of weft on the stack]. What loads modules is left out.
"""

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from paths import ROOT

WEFT = f"{ROOT / 'weft'}{os.sep}"
#: Services that everything passes through: compiled methods of dataclasses, locks, late loading.
SERVICES = ("ir/dataclass.py", "ir/process.py")


class Walk:
    """A profiler of all threads. on: whether it notes what is entered."""

    def __init__(self) -> None:
        self.on = False
        self.entries: dict[tuple[str, str], list[str]] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if not self.on or event != "call" or not frame.f_code.co_filename.startswith(WEFT):
            return
        key = frame.f_code.co_filename[len(WEFT) :], frame.f_code.co_qualname
        if key in self.entries or key[0] in SERVICES or frame.f_code.co_name.startswith("<"):
            return
        files: list[str] = []
        caller = frame.f_back
        while caller is not None:
            file = caller.f_code.co_filename
            if file.startswith(WEFT):
                if caller.f_code.co_name == "<module>":
                    return
                if file[len(WEFT) :] not in (*files, *SERVICES):
                    files.append(file[len(WEFT) :])
            caller = caller.f_back
        self.entries[key] = files[::-1]


def compiled_call() -> Callable[[], Any]:
    """The first call of a compiled function."""
    import numpy as np

    import weft as wf

    x, w = np.ones((32, 784), np.float32), np.ones((784, 10), np.float32)
    step = wf.compile(lambda x, w: wf.nn.softmax(wf.matmul(x, w) + 1.0))
    return lambda: step(x, w)


def session_run(target: Any = "", devices: tuple[str, str] = ("", "")) -> Callable[[], Any]:
    """The first run of a step that reads a variable; devices: of the variable, of what reads it."""
    import numpy as np

    import weft as wf

    x = np.ones((32, 784), np.float32)
    graph = wf.Graph()
    with graph.as_default():
        fed = wf.placeholder(wf.float32, [32, 784], name="x")
        with wf.device(devices[0]):
            w = wf.Variable(np.ones((784, 10), np.float32))
        with wf.device(devices[1]):
            y = wf.nn.softmax(wf.matmul(fed, w) + 1.0)
        begin = wf.global_variables_initializer()
    session = wf.Session(target, graph=graph)
    session.run(begin)
    return lambda: session.run(y, {fed: x})


def cluster_step(folder: str) -> Callable[[], Any]:
    """The first run of a step on two tasks, both in this process: one sends the other a tensor."""
    import weft as wf

    jobs = {job: [f"ipc://{folder}/{job}"] for job in ("ps", "worker")}
    spec = wf.train.ClusterSpec(jobs)
    servers = [wf.train.Server(spec, job, 0) for job in jobs]
    return session_run(servers[1].target, ("/job:ps/task:0", "/job:worker/task:0"))


def main(name: str) -> None:
    walk = Walk()
    threading.setprofile(walk)
    with tempfile.TemporaryDirectory() as folder:
        cases = {
            "compile": compiled_call,
            "session": session_run,
            "cluster": lambda: cluster_step(folder),
        }
        call = cases[name]()
        walk.on = True
        sys.setprofile(walk)
        call()
        walk.on = False
        sys.setprofile(None)
        for (file, function), files in walk.entries.items():
            print(json.dumps([file, function, files]))
    sys.stdout.flush()
    os._exit(0)  # servers and their threads are not waited for


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(sys.argv[1])
