"""`weft place --simulate`: golden cases in tests/cases/place.txt, JSON, ranges of tasks."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from golden_cases import Case, read_cases, rewrite
from paths import CASES

from weft.frontend.tools.main import main

GOLDEN = CASES / "place.txt"
CASES_HERE = read_cases(GOLDEN.read_text("utf-8"))[1]
BY_NAME = {case.name: case for case in CASES_HERE}


def command(case: Case, folder: Path, *more: str) -> list[str]:
    """The command line of a case. Its head has the file of devices, and more arguments."""
    rows = [line.removeprefix("// ").partition(": ") for line in case.head.splitlines()]
    head = {key: value for key, _, value in rows}
    graph, devices = folder / "g.weft", folder / "d.json"
    graph.write_text(case.source)
    devices.write_text(head["devices"])
    args = ["place", str(graph), "--devices", str(devices), *shlex.split(head.get("args", ""))]
    return [*args, *more]


@pytest.mark.parametrize("case", CASES_HERE, ids=[c.name for c in CASES_HERE])
def test_case(case: Case, update: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(command(case, tmp_path, "--simulate"))
    out, err = capsys.readouterr()
    found = out
    if status:
        found = "".join(f"// {line}".rstrip() + "\n" for line in err.splitlines())
    found = "".join(f"{line}\n" for line in found.splitlines() if line)
    if update:
        rewrite(GOLDEN, case, found)
    else:
        assert found == case.expected, f"{case.name} (pytest --update rewrites it)"


def simulated(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> Any:
    assert main(command(BY_NAME[name], tmp_path, "--json", *more)) == 0
    return json.loads(capsys.readouterr().out)


def test_json_says_what_the_table_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = simulated("variables_on_a_server", tmp_path, capsys)
    assert data["bound"]["seconds"] <= data["seconds"] <= data["greedy_seconds"]
    assert data["distance"] == pytest.approx(data["seconds"] / data["bound"]["seconds"] - 1)
    assert data["search"] == {"evaluations": 50, "seed": 1}
    server = next(d for d in data["devices"] if "/job:ps" in d["name"])
    assert server["lasting_bytes"] == 4_000_000 <= server["memory_bytes"]
    assert server["capacity_bytes"] == 20_000_000
    assert "variable 'w': 4,000,000 bytes" in server["largest"]
    ends = [span["end"] for span in data["path"]]
    assert ends == sorted(ends)
    assert ends[-1] <= data["seconds"]


def test_replicas_fill_the_links_of_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = simulated("workers_of_a_server", tmp_path, capsys, "--replicas", "10")["replicas"]
    many = simulated("workers_of_a_server", tmp_path, capsys)["replicas"]
    assert (few["workers"], many["workers"]) == (10, 2000)
    assert many["seconds"] > 2000 * many["pull_bytes"] / 1.2e9 > few["seconds"]
    assert many["efficiency"] < few["efficiency"]
    backup = simulated("workers_of_a_server", tmp_path, capsys, "--needed", "1000")["replicas"]
    assert backup["dropped"]


def test_bad_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = command(BY_NAME["two_products_beside_each_other"], tmp_path)
    devices = Path(args[args.index("--devices") + 1])
    for name, told in (("/job:a/task:5-3/cpu:0", "no tasks from 5 to 3"),
                       ("/job:a/task:0-1/cpu", "does not name one device")):  # fmt: skip
        devices.write_text(json.dumps([name]))
        assert main(args) == 2
        assert told in capsys.readouterr().err
    devices.write_text(json.dumps([{"name": "/job:a/task:0/cpu:0", "flops": -1.0}]))
    assert main(args) == 2
    assert "flops=-1.0 is not > 0" in capsys.readouterr().err


def test_a_device_may_say_its_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One product of 256 cubed at 1 GFLOP/s takes 33.6 ms, and a kernel 0.1 us to start."""
    args = command(BY_NAME["two_products_beside_each_other"], tmp_path, "--json")
    row = {"name": "/job:a/task:0/cpu:0", "flops": 1e9, "bytes_per_s": 1e12}
    Path(args[args.index("--devices") + 1]).write_text(json.dumps([row]))
    assert main(args) == 0
    seconds = json.loads(capsys.readouterr().out)["seconds"]
    assert seconds == pytest.approx(2 * (2 * 256**3 / 1e9 + 1e-7))
