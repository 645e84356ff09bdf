"""Two processes at full rate: memory and descriptors stay as they are. WEFT_SOAK_SECONDS sets how
long (default 10; the promise is 600)."""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
from comm_peers import FORGET, LEND, READ, Here, spawn

from weft.comm.limits import Limits

SECONDS = float(os.environ.get("WEFT_SOAK_SECONDS", "10"))


def usage(pid: int) -> tuple[int, int]:
    """Resident bytes and descriptors of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s*(\d+) kB", text)
    assert found is not None
    return int(found[1]) * 1024, len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("shared", [False, True])
def test_memory_and_descriptors_are_flat(shared: bool) -> None:
    faulthandler.dump_traceback_later(3 * SECONDS + 300, exit=True)  # pytest's own ends at 600 s
    sizes = [4, 1000, 50_000, 70_000, 1 << 20, 5_000_000]
    arrays = [np.random.default_rng(0).integers(0, 256, n).astype(np.uint8) for n in sizes]
    limits = Limits(heartbeat_timeout_s=30.0)
    with Here("here", shared=shared, limits=limits) as here, spawn("peer") as peer:
        here.connect("peer", peer.address)
        step = 1 << 36

        def run(seconds: float) -> int:
            nonlocal step
            count, end = 0, time.monotonic() + seconds
            while time.monotonic() < end:
                step += 1
                for key, x in enumerate(arrays):
                    here.send("peer", LEND if shared else READ, step, 2 * key)
                    here.send_tensor("peer", step, 2 * key, (), x, lend=shared)
                for key, x in enumerate(arrays):
                    assert here.take(step, 2 * key + 1).nbytes == x.nbytes
                here.forget(step)
                here.send("peer", FORGET, step)
                count += 1
            return count

        warm = 0
        while warm < 50:  # allocators have what they will have
            warm += run(SECONDS / 5)
        gc.collect()
        before = [usage(pid) for pid in (os.getpid(), peer.process.pid)]
        assert run(SECONDS) > 10
        gc.collect()
        after = [usage(pid) for pid in (os.getpid(), peer.process.pid)]
        for (memory, descriptors), (memory_after, descriptors_after) in zip(
            before, after, strict=True
        ):
            assert memory_after < memory + (32 << 20)
            assert descriptors_after <= descriptors + 2
        assert here.rendezvous.held_bytes == 0
        assert (here.transfers.incoming, here.transfers.outgoing) == (0, 0)
        assert here.rejections.counts() == {}
