"""Runs graphs read from text in a process of its own: for tests/session/test_graph_text.py.

Each line of stdin is a job: {"graph": path, "feeds": npz, "runs": [[names], ...], "out": npz}.
"""

from __future__ import annotations

import json
import sys

import numpy as np

import weft as wf


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        try:
            graph = wf.Graph.load(job["graph"])
            feeds = dict(np.load(job["feeds"]))
            known = {name: feeds[name] for name in feeds if name in graph._named}
            found = {}
            with wf.Session(graph=graph) as session:
                for i, fetches in enumerate(job["runs"]):
                    for k, value in enumerate(session.run(fetches, known)):
                        if value is not None:
                            found[f"{i}_{k}"] = np.asarray(value)
            np.savez(job["out"], **found)
        except Exception as error:
            print("error:", repr(str(error)), flush=True)
        else:
            print("done", flush=True)


if __name__ == "__main__":
    main()
