"""A fork while other threads hold weft's locks: neither process may wait for ever."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, threading
import numpy as np
import weft as wf

x = np.ones(1 << 18, np.float32)
v = wf.Variable(np.zeros_like(x))
step = wf.compile(lambda x: v.assign_add(wf.tanh(wf.exp(x) * 0.1)))
step(x)
stop = False

def run():
    while not stop:
        step(x)

def compile_more():
    k = 0
    while not stop:
        k += 1
        wf.compile(lambda t: wf.sum(wf.cumulative_sum(t * k) ** (k % 5)))(x[: 100 + k])

threads = [threading.Thread(target=f) for f in (run, run, compile_more)]
[t.start() for t in threads]
signal.alarm(40)
bad = []
for k in range(12):
    child = os.fork()
    if not child:
        signal.alarm(15)
        step(x)
        v.numpy()
        wf.compile(lambda t: wf.sum(t) * k)(x[:50])
        os._exit(0)
    bad.append(os.waitpid(child, 0)[1])
stop = True
[t.join() for t in threads]
assert not any(bad), bad
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_a_fork_waits_for_steps_and_compilations() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
