"""Clusters of this process, for tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import weft as wf


@contextmanager
def local_cluster(jobs: Mapping[str, int]) -> Iterator[list[wf.train.Server]]:
    """Servers for so many tasks of each job, which are stopped at the end."""
    servers = wf.train.Server.create_local_cluster(jobs)
    try:
        yield servers
    finally:
        for server in servers:
            server.stop()
