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

#: Threads that ask about background compilations all the time: at most forks one is in the middle
#: of asking, with whatever locks that takes.
ASKING = """
import os, signal, threading
from weft.codegen.llvm import jit

kernels = [jit.Kernel(f"fork-{k}", f"fork_{k}", lambda e: None) for k in range(12)]
stop = False

def ask():
    while not stop:
        all([jit.is_done(kernel) for kernel in kernels])

threads = [threading.Thread(target=ask) for _ in range(2)]
signal.alarm(50)
jit.start_compiling(kernels)
[t.start() for t in threads]
status = 0
for _ in range(12):
    child = os.fork()
    if not child:
        signal.alarm(10)
        done = all([jit.is_done(kernel) for kernel in kernels])
        jit.compile_kernels(kernels)
        os._exit(0 if done else 1)
    status = os.waitpid(child, 0)[1]
    if status:
        break
stop = True
[t.join() for t in threads]
assert not status, status
"""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def _run(program: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_fork_waits_for_steps_and_compilations() -> None:
    _run(PROGRAM)


def test_a_fork_while_threads_ask_for_what_is_compiled_in_the_background() -> None:
    _run(ASKING, WEFT_CACHE="0")  # a look through a large cache would wait for the GIL at each file
