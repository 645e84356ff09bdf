"""The thread pool: limits, many callers, oversubscription, sleep, fork, the end of the process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cut_calls import cut_everything
from paths import ROOT

import weft as wf
from weft.codegen import call
from weft.codegen.pool import LONG
from weft.codegen.steps.walker import CALL_WORDS
from weft.runtime.native import machine
from weft.runtime.native.pool import POOL

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def limit_as_before() -> Iterator[None]:
    before = POOL.limit
    yield
    POOL.set_limit(before)


def model(x: Any) -> Any:
    y = wf.cumulative_sum(wf.exp(x) * 2, axis=1)
    return wf.sum(wf.sort(y, axis=1) - y, axis=0)


def given(seed: int = 0, rows: int = 64) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, 96)).astype(np.float32)


class TestLimits:
    @pytest.mark.parametrize("bad", [0, -1, 257, True, 2.0, "2", None])
    def test_bad_numbers(self, bad: Any) -> None:
        with pytest.raises(wf.errors.InvalidArgumentError, match="number of threads") as caught:
            wf.set_num_threads(bad)
        assert "test_pool.py" in str(caught.value)
        if bad is not None:
            with pytest.raises(wf.errors.InvalidArgumentError, match=r"wf.compile\(threads=\)"):
                wf.compile(threads=bad)(lambda x: x)

    def test_get_and_set(self) -> None:
        wf.set_num_threads(np.int64(3))
        assert wf.get_num_threads() == 3

    def test_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEFT_NUM_THREADS", " 7 ")
        assert machine.default_threads() == 7
        for bad in ("0", "many", "-2", "1.5", "1000"):
            monkeypatch.setenv("WEFT_NUM_THREADS", bad)
            with pytest.raises(wf.errors.InvalidArgumentError, match="WEFT_NUM_THREADS"):
                machine.default_threads()
        monkeypatch.setenv("WEFT_NUM_THREADS", "")
        assert machine.default_threads() == machine.usable_processors()

    @pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
    def test_affinity(self) -> None:
        before = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, {min(before)})
            assert machine.usable_processors() == 1
        finally:
            os.sched_setaffinity(0, before)

    def test_threads_1_has_no_pool(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cut_everything(monkeypatch)
        alone = wf.compile(threads=1)(model)
        step = alone._specialized((given(),), {}).on_cpu("a test")
        assert (step.pool, step.threads) == (0, 1)
        two = wf.compile(threads=2)(model)._specialized((given(),), {}).on_cpu("a test")
        assert step.pool != two.pool
        assert two.threads == 2

    def test_small_steps_have_no_pool(self) -> None:
        step = wf.compile(lambda x: x + 1)._specialized((given(),), {}).on_cpu("a test")
        assert step.pool == 0


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


class TestControlGroups:
    @pytest.mark.parametrize(
        ("files", "wanted"),
        [
            ({}, None),
            ({"proc/self/cgroup": "0::/\n"}, None),
            ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
            ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 2),
            (
                {
                    "proc/self/cgroup": "0::/a/b\n",
                    "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
                    "sys/fs/cgroup/a/cpu.max": "300000 100000",
                },
                3,
            ),
            # in a container: the path is the host's, the mounted root is the container's group
            ({"proc/self/cgroup": "0::/docker/x\n", "sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
            (
                {
                    "proc/self/cgroup": "5:cpu,cpuacct:/box\n1:name=systemd:/\n",
                    "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "250000\n",
                    "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
                },
                3,
            ),
            (
                {
                    "proc/self/cgroup": "1:cpu:/\n",
                    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                },
                None,
            ),
            ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "nonsense"}, None),
        ],
    )
    def test_quota(self, tmp_path: Path, files: dict[str, str], wanted: int | None) -> None:
        assert machine.cgroup_processors(write(tmp_path, files)) == wanted

    def test_this_machine(self) -> None:
        quota = machine.cgroup_processors()
        assert quota is None or quota >= 1
        assert 1 <= machine.usable_processors() <= (os.cpu_count() or 1)


class TestManyCallers:
    @pytest.mark.parametrize("limit", [2, 16])
    def test_python_threads_at_once(self, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Oversubscribed: 8 callers and up to 15 workers, wherever the pool is free or not."""
        cut_everything(monkeypatch)
        wf.set_num_threads(limit)
        f = wf.compile(model)
        inputs = [given(k) for k in range(8)]
        wanted = [wf.compile(threads=1)(model)(x).numpy().tobytes() for x in inputs]
        end = time.monotonic() + 30
        while POOL.workers() < limit - 1 and time.monotonic() < end:  # made as calls last longer
            f(inputs[0])
        wrong: list[int] = []

        def work(k: int) -> None:
            for i in range(40):
                at = (k + i) % 8
                if f(inputs[at]).numpy().tobytes() != wanted[at]:
                    wrong.append(at)

        threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(t.is_alive() for t in threads)
        assert not wrong
        assert POOL.workers() >= limit - 1

    def test_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cut_everything(monkeypatch)
        wf.set_num_threads(4)
        total = wf.Variable(np.zeros((40, 50), np.float32))
        f = wf.compile(lambda x: total.assign_add(x))
        one = np.ones((40, 50), np.float32)
        threads = [
            threading.Thread(target=lambda: [f(one) for _ in range(50)], daemon=True)
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert (total.numpy() == 200).all()


def test_an_idle_pool_uses_no_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_everything(monkeypatch)
    wf.set_num_threads(4)
    f = wf.compile(model)
    f(given())
    assert POOL.workers() >= 3

    def used() -> float:  # by other tests' threads, too, which come to an end
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.5)
        return time.process_time() - before

    assert any(used() < 0.05 for _ in range(6))


def python(code: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    head = """
        import os, sys, threading, time, signal
        sys.path.insert(0, "tests/support")
        import numpy as np
        import weft as wf
        from weft.codegen import call
        call.WORTH_CUTTING_NS, call.CHUNK_NS = 0.0, 1e-9
        from weft.runtime.native.pool import POOL
        wf.set_num_threads(4)
        @wf.compile
        def f(x):
            return wf.sum(wf.sort(wf.cumulative_sum(wf.exp(x), axis=1), axis=1), axis=0)
        x = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
        from weft.codegen.llvm.jit import wait_for_background
        wait_for_background()  # or the first call would not wait for the pool's code
        wanted = f(x).numpy().tobytes()
        assert POOL.workers() == 3, POOL.workers()
    """
    script = textwrap.dedent(head) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", script],
        capture_output=True, text=True, timeout=timeout, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip


def check_clean(done: subprocess.CompletedProcess[str], says: str = "fine") -> None:
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr[-3000:])
    assert done.stdout.split() == says.split()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
class TestFork:
    def test_parent_and_child_compute(self) -> None:
        done = python("""
            child = os.fork()  # Python 3.12 warns if there are threads: there are none
            assert POOL.workers() == 0
            late = time.monotonic() + 20
            while True:  # a caller whose workers came too late goes on alone for a while
                assert f(x).numpy().tobytes() == wanted
                if POOL.workers() == 3 or time.monotonic() > late:
                    break
            assert POOL.workers() == 3
            if child == 0:
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            print("fine")
        """)
        check_clean(done)

    @pytest.mark.slow
    def test_while_other_threads_compute(self) -> None:
        """Children of a process whose other threads are in the middle of steps."""
        done = python("""
            import warnings
            warnings.simplefilter("ignore")
            stop = threading.Event()
            wrong = []
            def work():
                while not stop.is_set():
                    if f(x).numpy().tobytes() != wanted:
                        wrong.append(1)
            threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
            for t in threads: t.start()
            for k in range(12):
                child = os.fork()
                if child == 0:
                    signal.alarm(20)
                    good = all(f(x).numpy().tobytes() == wanted for _ in range(5))
                    os._exit(0 if good and POOL.workers() == 3 else 9)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                assert code == 0, code
            stop.set()
            for t in threads: t.join(20)
            assert not wrong
            assert f(x).numpy().tobytes() == wanted
            print("fine")
        """)
        check_clean(done)

    def test_multiprocessing(self) -> None:
        done = python("""
            import multiprocessing
            def work(k):
                return f(x).numpy().tobytes() == wanted
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert all(pool.map(work, range(8)))
            print("fine")
        """)
        check_clean(done)


class TestExit:
    def test_after_a_step(self) -> None:
        started = time.perf_counter()
        done = python("""
            import atexit, weft.runtime.native.pool
            from weft.codegen.pool import WORDS
            t = time.perf_counter(); POOL.close(); took = time.perf_counter() - t
            assert POOL.workers() == 0 and took < 5, took
            assert f(x).numpy().tobytes() == wanted and POOL.workers() == 0  # alone
            POOL.reopen()
            POOL._words[WORDS["alone_until"]] = 0  # after a long wait steps work alone for a time
            assert f(x).numpy().tobytes() == wanted and POOL.workers() == 3
            print("fine")
        """)
        check_clean(done)
        assert time.perf_counter() - started < 50

    @pytest.mark.slow
    def test_with_a_daemon_thread_in_a_step(self) -> None:
        done = python("""
            big = np.random.default_rng(0).standard_normal((3000, 3000)).astype(np.float32)
            def work():
                while True:
                    f(big)
            for _ in range(3):
                threading.Thread(target=work, daemon=True).start()
            time.sleep(0.5)
            print("fine")
        """)
        check_clean(done)

    @pytest.mark.slow
    def test_keyboard_interrupt(self) -> None:
        """Ctrl-C during steps: the exception comes through, the pool still works."""
        done = python("""
            # a shell that starts its command in the background has it ignore Ctrl-C
            signal.signal(signal.SIGINT, signal.default_int_handler)
            big = np.random.default_rng(0).standard_normal((500, 500)).astype(np.float32)
            for _ in range(5):
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
                try:
                    while True:
                        f(big)
                except KeyboardInterrupt:
                    pass
                assert f(x).numpy().tobytes() == wanted
            print("fine")
        """)
        check_clean(done)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_leave_signals_to_python() -> None:
    """A worker blocks what Python handles (SIGINT), and not what means a crash (SIGSEGV)."""
    done = python("""
        def has(mask, number): return bool(mask >> (number - 1) & 1)
        def blocked():
            for task in os.listdir("/proc/self/task"):
                try:
                    text = open(f"/proc/self/task/{task}/status").read()
                except (FileNotFoundError, ProcessLookupError):
                    continue  # a thread that compiled has ended meanwhile
                yield next(int(l.split()[1], 16) for l in text.splitlines() if "SigBlk" in l)
        until = time.monotonic() + 20  # a thread that has not begun yet blocks all
        while time.monotonic() < until:
            masks = list(blocked())
            mine = [m for m in masks if has(m, signal.SIGINT) and not has(m, signal.SIGSEGV)]
            if len(mine) == 3:
                break
            time.sleep(0.01)
        assert len(mine) == 3, [hex(m) for m in masks]
        print("fine")
    """)
    check_clean(done)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(machine.usable_processors() < 2, reason="one processor")
def test_a_long_call_of_few_chunks_wakes_the_workers() -> None:
    """What counts is the time that the work takes, not the number of chunks."""
    done = python("""
        from weft.codegen.pool import WORDS
        def helped():
            own, ticks = str(os.getpid()), 0
            for task in os.listdir("/proc/self/task"):
                if task != own:
                    stat = open(f"/proc/self/task/{task}/stat").read().rpartition(")")[2]
                    ticks += int(stat.split()[11])
            return ticks / os.sysconf("SC_CLK_TCK")
        call.MOST_CHUNKS = 4
        sort = wf.compile(lambda x: wf.sort(x, axis=1))
        big = np.random.default_rng(0).standard_normal((4000, 3000)).astype(np.float32)
        sort(big[:4])  # compiled, workers made
        time.sleep(0.1)
        before = helped()
        for _ in range(12):  # the system counts in hundredths of a second
            POOL._words[WORDS["debt"]] = 0  # of earlier calls
            POOL._words[WORDS["alone_until"]] = 0  # a worker was late: others use the processors
            sort(big)
            time.sleep(0.01)
        assert helped() - before > 0.02, helped() - before
        print("fine")
    """)
    check_clean(done)


def _chunk_words(step: Any, *args: Any) -> list[int]:
    """The chunks of the cut calls in a compiled function's table."""
    table = step._specialized(args, {}).on_cpu("a test").plan.table
    rows = np.reshape(table.calls, (-1, CALL_WORDS))
    return [int(row[3]) for row, owner in zip(rows, table.owner, strict=True) if owner >= 0]


def test_long_chunks_are_marked_so_that_sleepers_wake_before_the_first() -> None:
    """The caller would do the first chunk alone: an eighth of a product of 16 chunks."""
    product = wf.compile(lambda a, b: wf.matmul(a, b))
    a = np.ones((1024, 1024), np.float32)
    (chunk,) = _chunk_words(product, a, a)
    assert chunk > LONG
    assert 2 <= chunk - LONG < 128
    short = wf.compile(lambda x: wf.exp(x))
    (chunk,) = _chunk_words(short, np.ones(1 << 18, np.float32))
    assert 0 < chunk < LONG
    assert not call.is_long(0, 1e9), "a call that is not cut"
    assert call.is_long(2, call.LONG_CHUNK_NS / 2)
    assert not call.is_long(1, call.LONG_CHUNK_NS / 2)
