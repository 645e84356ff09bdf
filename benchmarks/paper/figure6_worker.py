"""One worker of figure 6: the null steps of `null_step_worker.py`, as `windows.py` says.

    python figure6_worker.py INDEX FOLDER scalar|dense MEGABYTES

It is task INDEX of the job `worker` of FOLDER/cluster.json, and the session's master.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from windows import obey

sys.path.insert(0, str(Path(__file__).parents[1]))
from null_step_worker import weft_worker

WARM_SECONDS = 3.0  # threads still compile what may be used


def main() -> None:
    """See the module's text."""
    index, folder, kind, megabytes = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    cluster = json.loads(Path(folder, "cluster.json").read_text())
    obey(weft_worker(cluster, index, kind, megabytes), WARM_SECONDS)


if __name__ == "__main__":
    main()
