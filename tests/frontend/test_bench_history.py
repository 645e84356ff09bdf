"""`weft bench --history` and `--compare`: what is kept, what names mean, what is told of it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from bench_runs import TIMES, commit_of, run_of, write_run

from weft.frontend.tools.bench_compare import compare, pair_up
from weft.frontend.tools.bench_history import History, Side, add_run, read_run, run_facts
from weft.frontend.tools.bench_page import history_page
from weft.frontend.tools.main import main
from weft.ir.errors import InvalidArgumentError, NotFoundError

OLD, NEW = commit_of(1), commit_of(2)
SLOW = {"rows: softmax": 1.25}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two commits on one machine, the second slower in softmax."""
    made = tmp_path / "runs"
    write_run(made, day=0, commit=OLD)
    write_run(made, day=1, commit=NEW, slow=SLOW)
    return made


def bench(*argv: object) -> int:
    return main(["bench", *map(str, argv)])


def fails(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert bench(*argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "hint:" in err or "folder" in err or "--" in err
    return err


def sides(folder: Path) -> list[Side]:
    return History.read(folder).sides


def verdicts(old: Side, new: Side, **options: Any) -> dict[str, tuple[str, str]]:
    found = compare(old, new, **options)
    return {c.workload: (str(c.verdict), c.note) for c in found.changes}


# ------------------------------------------------------------------------------------- what is kept


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_a_run_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a repository: its commit, whether files were changed, the machine, and every sample."""
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    options = ["--quick", "--against", "numpy", "--rounds", "6"]
    assert bench("reductions", *options, "--save", "--json", "one.json") == 0
    assert "added to the history: .weft-bench/" in capsys.readouterr().out.replace("\n", "")
    (tmp_path / "a").write_text("2")
    assert bench("reductions", *options, "--history", ".weft-bench", "--machine", "mine") == 0
    clean, changed = History.read(".weft-bench").runs
    assert (clean.commit, clean.dirty, changed.commit, changed.dirty) == (
        commit, False, commit, True,
    )  # fmt: skip
    assert Path(changed.path).name.endswith(f"-{commit[:8]}-changed.json")
    row = clean.rows["reductions: sum 2^22, small"]
    assert {name: len(t.samples) for name, t in row.calls.items()} == {"weft": 6, "numpy": 6}
    assert row.step is not None
    assert len(row.step.samples) == 6
    assert row.timing is row.calls["weft"]
    assert min(row.timing.samples) == row.timing.minimum
    assert clean.machine.cpu
    assert clean.machine.threads
    assert {"weft", "numpy", "llvmlite", "python"} <= set(clean.versions)
    assert changed.machine.title == "mine"
    # what --json writes is what the history has
    assert read_run("one.json").rows == clean.rows
    # and of itself nothing became slower; six samples are enough for an interval
    found = compare(Side((clean,)), Side((read_run("one.json"),)))
    assert "slower" not in [c.verdict for c in found.changes]
    assert all(c.time is not None and c.time.is_known for c in found.changes)


def test_where_there_is_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    facts = run_facts()
    assert (facts["commit"], facts["dirty"]) == (None, None)
    assert facts["date"].endswith("+00:00")
    monkeypatch.setenv("PATH", "")
    assert run_facts()["commit"] is None


def test_runs_of_one_second_have_files_of_their_own(tmp_path: Path) -> None:
    text = json.dumps(run_of(commit=OLD, dirty=True))
    names = [add_run(tmp_path / "h", text).name for _ in range(3)]
    assert names[0] == f"20250303T090000-{OLD[:8]}-changed.json"
    assert len(set(names)) == 3
    assert add_run(tmp_path / "h", json.dumps(run_of(commit=None))).name.endswith("no-commit.json")


def test_files_of_the_first_version_are_read_and_cannot_tell(tmp_path: Path, folder: Path) -> None:
    held = run_of()
    del held["run"], held["machine"]["threads"], held["machine"]["name"]
    held["schema"], held["peaks"] = 1, {"threads": 4}
    for row in held["workloads"]:
        for timing in (row["step"], *row["against"].values()):
            del timing["samples"]
    path = tmp_path / "first.json"
    path.write_text(json.dumps(held))
    run = read_run(path)
    assert (run.commit, run.machine.threads) == ("", 4)
    found = compare(Side((run,)), sides(folder)[1])
    assert {c.verdict for c in found.changes} == {"cannot tell"}
    assert {c.note for c in found.changes} == {"too few samples"}
    softmax = found.changes[0]
    assert softmax.time is not None
    assert softmax.time.ratio == pytest.approx(1.25, rel=0.05)


def test_a_run_on_a_gpu(tmp_path: Path) -> None:
    """Its steps are the workloads, and the device is the machine."""
    paths = []
    for number, factor in enumerate((1.0, 1.5)):
        timing = run_of(slow={"rows: softmax": factor})["workloads"][0]["step"]
        held = run_of()
        del held["workloads"], held["peaks"], held["machine"]["threads"]
        held["steps"] = [{"name": "f", "device": "gpu:0: NVIDIA H200", "step": timing}]
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps(held))
    old, new = (Side((read_run(path),)) for path in paths)
    assert str(old.machine) == "NVIDIA H200, x86-64-v4"
    assert verdicts(old, new) == {"f": ("slower", "")}


# -------------------------------------------------------------------------------------- comparisons


def test_what_is_slower_is_marked_and_nothing_else(folder: Path) -> None:
    old, new = sides(folder)
    found = verdicts(old, new)
    assert found.pop("rows: softmax") == ("slower", "")
    assert set(found.values()) == {("same", "")}
    assert verdicts(new, old)["rows: softmax"] == ("faster", "")
    change = compare(old, new).changes[0]
    assert change.time is not None
    assert change.time.low < 1.25 < change.time.high
    assert change.new == pytest.approx(1.25 * 410e-6 * 1.013, rel=0.03)
    assert change.peer == "numpy"


def test_a_busy_machine_is_no_regression(tmp_path: Path) -> None:
    """Everything takes 1.3 times as long; without a peer nobody can know."""
    for peers in (True, False):
        folder = tmp_path / str(peers)
        write_run(folder, day=0, commit=OLD, peers=peers)
        write_run(folder, day=1, commit=NEW, load=1.3, peers=peers)
        found = set(verdicts(*sides(folder)).values())
        if peers:
            assert found == {("same", "numpy changed as much: the machine")}
        else:
            assert found == {("slower", "")}


def test_another_numpy_is_no_control(tmp_path: Path) -> None:
    write_run(tmp_path / "h", day=0, commit=OLD)
    write_run(tmp_path / "h", day=1, commit=NEW, numpy="2.5.0")
    found = compare(*sides(tmp_path / "h"))
    assert {c.peer for c in found.changes} == {""}
    assert "numpy 2.4.1 and 2.5.0" in found.notes


def test_a_run_without_the_peer_does_not_take_the_control_away(tmp_path: Path) -> None:
    """Three runs against three on a machine that is slower, or of another program: one run timed no
    peer, or another version of it."""
    for number, other in enumerate(({"peers": False}, {"numpy": "1.9"})):
        for slow in (None, SLOW):
            folder = tmp_path / f"{number}{slow is None}"
            for n in range(3):
                write_run(folder, day=0.1 * n, commit=OLD)
                changed = other if n == 1 else {}
                write_run(folder, day=1 + 0.1 * n, commit=NEW, load=1.3, slow=slow, **changed)
            found = compare(*sides(folder))
            assert {c.peer for c in found.changes} == {"numpy"}
            softmax, *others = [c.verdict for c in found.changes]
            assert softmax == ("same" if slow is None else "slower")
            assert set(others) == {"same"}
            told = ("1 run without whole calls", "numpy 2.4.1 and 1.9, 2.4.1")[number]
            assert any(told in note for note in found.notes)
            assert not any("no peer was timed" in note for note in found.notes)


def test_it_is_told_where_there_is_no_control(tmp_path: Path) -> None:
    for peers, numpy in ((False, "2.4.1"), (True, "2.5.0")):
        folder = tmp_path / str(peers)
        write_run(folder, day=0, commit=OLD)
        write_run(folder, day=1, commit=NEW, load=1.3, peers=peers, numpy=numpy)
        found = compare(*sides(folder))
        assert {str(c.verdict) for c in found.changes} == {"slower"}
        assert any("no peer was timed on both sides in one version: a busier machine" in note
                   for note in found.notes)  # fmt: skip


def test_other_threads_cannot_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "h"
    write_run(folder, day=0, commit=OLD, threads=8)
    write_run(folder, day=1, commit=NEW, threads=1, load=4.0, peers=False)
    assert set(verdicts(*sides(folder)).values()) == {("cannot tell", "8 and 1 threads")}
    names = ["--compare", OLD[:8], NEW[:8], "--history", folder]
    assert bench(*names, "--fail-on-regression") == 0
    assert "threads: 8 and 1" in capsys.readouterr().out


def test_noise_cannot_tell(tmp_path: Path) -> None:
    for day, commit in enumerate((OLD, NEW)):
        write_run(tmp_path / "h", day=day, commit=commit, noise=0.6, count=10)
    found = verdicts(*sides(tmp_path / "h")).values()
    assert {verdict for verdict, _ in found} == {"cannot tell"}
    assert ("cannot tell", "5 % is neither shown nor ruled out") in found
    for day, commit in enumerate((OLD, NEW)):
        write_run(
            tmp_path / "few", day=day, commit=commit, count=3, slow={"rows: softmax": 1 + day}
        )
    assert set(verdicts(*sides(tmp_path / "few")).values()) == {("cannot tell", "too few samples")}


def test_equal_runs_are_rarely_marked(tmp_path: Path) -> None:
    """Of 200 comparisons of equal programs, on a machine that is more or less busy."""
    wrong = total = 0
    for seed in range(50):
        folder = tmp_path / str(seed)
        for day in (0, 1):
            write_run(folder, day=day, commit=commit_of(day), seed=seed, noise=0.1,
                      load=1 + 0.2 * day * (seed % 3))  # fmt: skip
        found = [verdict for verdict, _ in verdicts(*sides(folder)).values()]
        wrong += sum(v in ("slower", "faster") for v in found)
        total += len(found)
    assert total == 200
    assert wrong <= 2


def test_two_machines_by_the_peer(tmp_path: Path) -> None:
    """The second is three times as slow in everything, and weft there takes 1.25 times as long
    as it should in softmax."""
    folder = tmp_path / "h"
    write_run(folder, day=0, commit=OLD)
    write_run(folder, day=1, commit=OLD, cpu="Graviton 4", load=3.0, slow=SLOW)
    old, new = sides(folder)
    found = compare(old, new)
    assert found.across
    rows = {c.workload: c for c in found.changes}
    assert rows["rows: softmax"].verdict == "slower"
    assert rows["rows: softmax"].old == pytest.approx(2600 / 410, rel=0.03)
    assert rows["copies: scale 2^24"].verdict == "same"
    assert any("two machines" in note for note in found.notes)
    alone = Side((read_run(write_run(tmp_path / "alone", peers=False, cpu="x")),))
    assert set(verdicts(old, alone).values()) == {("cannot tell", "no peer on both")}


def test_several_runs_of_a_commit_count_together(folder: Path) -> None:
    """One of them was disturbed: what one pair of runs says is not enough."""
    write_run(folder, day=0.1, commit=OLD, slow={"copies: scale 2^24": 1.3})
    write_run(folder, day=1.1, commit=NEW, slow=SLOW)
    old, new = sides(folder)
    assert (len(old.runs), len(new.runs)) == (2, 2)
    found = verdicts(old, new)
    assert found["rows: softmax"][0] == "slower"
    assert found["copies: scale 2^24"][0] == "cannot tell"


# -------------------------------------------------------------------------------------------- names


def test_names(folder: Path, tmp_path: Path) -> None:
    write_run(folder, day=2, commit=NEW, dirty=True)
    write_run(folder, day=3, commit=OLD, cpu="Intel Xeon", name="ci")
    write_run(folder, day=4, commit=None)
    history = History.read(folder)
    found, is_machine = history.find(OLD[:6])
    assert [s.machine.title for s in found] == ["AMD EPYC 9R14", "ci"]
    assert not is_machine
    assert [s.label for s in history.find(NEW[:8])[0]] == [NEW[:8]]
    assert [s.label for s in history.find(NEW[:8] + "+")[0]] == [NEW[:8] + "+"]
    found, is_machine = history.find("ci")
    assert (len(found), is_machine) == (1, True)
    found, is_machine = history.find("epyc")
    assert (len(found), is_machine) == (4, True)
    assert found[-1].label == "2025-03-07 09:00"
    ((old, new),) = pair_up(history.find(OLD[:8]), history.find(NEW[:8]))
    assert old.machine == new.machine
    ((old, new),) = pair_up(history.find("epyc"), history.find("ci"))
    assert old.label == new.label == OLD[:8]
    with pytest.raises(NotFoundError, match="has no run of 'deadbeef'"):
        history.find("deadbeef")
    with pytest.raises(NotFoundError, match="has no machine 'cray'"):
        history.on("cray")
    write_run(folder, day=5, commit=OLD[:9] + "f" * 31)
    history = History.read(folder)
    with pytest.raises(InvalidArgumentError, match="beginning of 2 commits"):
        history.find(OLD[:8])


def test_what_git_calls_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "-q", "-b", "trunk")
    for number in range(2):
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", str(number))
        commit = git(tmp_path, "rev-parse", "HEAD")
        write_run(tmp_path / ".weft-bench", day=number, commit=commit)
    assert bench("--compare", "HEAD~1", "trunk") == 0
    assert f"new: {commit[:8]}, AMD EPYC 9R14, 2 threads" in capsys.readouterr().out
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "more")
    assert "has no run of 'trunk', which is" in fails(capsys, "--compare", "HEAD~1", "trunk")


# ------------------------------------------------------------------------------------- command line


def test_the_table_and_the_exit_status(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["--compare", OLD[:8], NEW[:8], "--history", folder]
    assert bench(*names) == 0
    out = capsys.readouterr().out
    (line,) = (line for line in out.splitlines() if line.startswith("rows: softmax"))
    assert re.search(r"41\d +5[12]\d +1\.2\dx \[1\.\d\d, 1\.\d\d\] +numpy 1\.2\dx \[.*slower", line)
    assert "1 slower, 0 faster, 3 same, 0 cannot tell (99 % intervals" in out
    assert bench(*names, "--fail-on-regression") == 1
    assert bench(*names, "--fail-on-regression", "--threshold", "40%") == 0
    assert bench("matmul", *names, "--fail-on-regression") == 0
    capsys.readouterr()
    back = ["--compare", NEW[:8], OLD[:8], "--history", folder]
    assert bench("softmax", *back, "--fail-on-regression") == 0
    out = capsys.readouterr().out
    assert "0 slower, 1 faster, 0 same" in out
    assert "matmul" not in out


def test_two_files_need_no_history(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--compare", *sorted(folder.glob("*.json"))) == 0
    assert "1 slower" in capsys.readouterr().out


def test_each_machine_that_has_both(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(folder, day=2, commit=OLD, name="ci")
    write_run(folder, day=3, commit=NEW, name="ci")
    names = ["--compare", OLD[:8], NEW[:8], "--history", folder]
    assert bench(*names) == 0
    out = capsys.readouterr().out
    assert out.count("slower,") == 2
    assert bench(*names, "--machine", "ci", "--fail-on-regression") == 0
    out = capsys.readouterr().out
    assert out.count("slower,") == 1
    assert bench("--compare", "epyc", "ci", "--history", folder) == 0
    assert "two machines: not the times are compared" in capsys.readouterr().out


def test_a_comparison_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--compare", OLD, NEW, "--history", folder, "--json", "-") == 0
    held = json.loads(capsys.readouterr().out)
    assert held["schema"] == 1
    (one,) = held["comparisons"]
    assert one["old"]["commit"] == OLD
    assert [row["workload"] for row in one["changes"]] == list(TIMES)
    first = one["changes"][0]
    assert first["verdict"] == "slower"
    assert first["new_by_old"]["low"] < first["new_by_old"]["ratio"] < first["new_by_old"]["high"]
    assert first["against_peer"]["ratio"] == pytest.approx(1.25, rel=0.05)


def test_wrong_options(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = ["--compare", OLD[:8], NEW[:8], "--history", folder]
    assert "are the same runs" in fails(capsys, "--compare", OLD, OLD[:8], "--history", folder)
    assert "is not there" in fails(capsys, "--compare", "a", "b", "--history", tmp_path / "none")
    assert "--threshold much" in fails(capsys, *two, "--threshold", "much")
    assert "--quick is for measuring" in fails(capsys, *two, "--quick")
    assert "--rounds is for measuring" in fails(capsys, *two, "--rounds", "3")
    assert "--save is for measuring" in fails(capsys, *two, "--save")
    assert "add --compare OLD NEW" in fails(capsys, "copies", "--fail-on-regression")
    assert "add --compare OLD NEW" in fails(capsys, "copies", "--threshold", "3")
    assert "--html shows a history" in fails(capsys, "copies", "--html", tmp_path / "x.html")
    assert "--repeat is for histories" in fails(capsys, "copies", "--repeat", "2")
    assert "--repeat 0" in fails(capsys, "copies", "--repeat", "0", "--history", folder)
    assert "--repeat is for measuring" in fails(capsys, *two, "--repeat", "2")
    assert "no times for a history" in fails(capsys, "copies", "--target", "sm_90", "--save")
    file = sorted(folder.glob("*.json"))[0]
    assert "is a file" in fails(capsys, "copies", "--history", file)
    assert "there is no folder" in fails(capsys, "copies", "--history", tmp_path / "no" / "runs")
    assert "there is no folder" in fails(capsys, *two, "--html", tmp_path / "no" / "x.html")
    assert "no workload with 'conv'" in fails(capsys, "conv2", *two).replace("conv2", "conv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON: .* in line 1"),
        ("[" * 200_000, "is not JSON: "),
        ("1" * 6000, "is not JSON: "),
        ('{"schema": 0, "workloads": []}', "has the schema 0"),
        ('{"schema": true, "workloads": []}', "has the schema True"),
        (json.dumps(run_of() | {"run": {"date": "0001-01-01T00:00:00+23:00"}}), "damaged run"),
        (json.dumps(run_of() | {"workloads": None, "steps": [{"name": 5}]}), "5 is no text"),
        (json.dumps(run_of() | {"workloads": [{"name": "\ud800"}]}), "damaged run"),
        (json.dumps(run_of() | {"machine": {"cores": [2]}}), r"damaged run .*: \[2\] is no count"),
        (json.dumps(run_of() | {"machine": {"threads": {"a": 1}}}), "is no count"),
        (json.dumps(run_of() | {"machine": {"versions": {"numpy": 2}}}), "2 is no text"),
        (
            '{"schema": 2, "machine": {}, "workloads": [{"name": "f", "step": '
            f'{{"minimum": 1{400 * "0"}, "median": 1}}}}]}}',
            "damaged run",
        ),
        ('{"schema": 9, "workloads": []}', "has the schema 9, this weft reads 1 to 2"),
        ('{"schema": 2, "workloads": []}', "damaged run .*: no 'machine'"),
        (
            '{"schema": 2, "machine": {}, "workloads": [{"step": null}]}',
            "damaged run .*: no 'name'",
        ),
        (
            '{"schema": 2, "machine": {}, "workloads": [{"name": "f", "step": '
            '{"minimum": 0, "median": 1}}]}',
            "damaged run .*: 0.0 seconds is no time",
        ),
        ('{"schema": 2, "machine": [], "workloads": []}', "damaged run"),
    ],
)
def test_files_that_are_none(
    text: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "wrong.json"
    path.write_text(text, encoding="utf-8")
    error = fails(capsys, "--compare", OLD[:8], NEW[:8], "--history", folder)
    assert re.search(message, error)
    assert str(path) in error
    assert main(["view", str(folder), "--html", str(folder.parent / "x.html")]) == 2


def test_json_of_other_things_is_left_out(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A comparison is written beside the runs, and they can be read nevertheless."""
    names, page = ["--compare", OLD[:8], NEW[:8], "--history", folder], tmp_path / "x.html"
    assert bench(*names, "--json", folder / "cmp.json") == 0
    (folder / "list.json").write_text("[]")
    capsys.readouterr()
    assert bench(*names, "--html", page) == 0
    out = capsys.readouterr().out
    assert "1 slower" in out
    assert "- left out, as no runs of `weft bench`: cmp.json, list.json" in out
    assert "cmp.json, list.json" in re.findall('class="sub">.*', page.read_text())[0]
    assert main(["view", str(folder), "--html", str(page)]) == 0
    assert "2 runs; left out" in capsys.readouterr().out
    assert "is not a run" in fails(capsys, "--compare", folder / "cmp.json", OLD, *names[3:])
    for file in folder.glob("0*.json"):
        file.unlink()
    assert "has no runs" in fails(capsys, *names)


def test_a_bad_history_is_told_before_measuring(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.json").write_text("{")
    options = ["copies", "--quick", "--repeat", "3", "--history", folder]
    assert "bad.json is not JSON" in fails(capsys, *options, "--html", tmp_path / "x.html")
    assert len(list(folder.iterdir())) == 3


def test_files_called_as_branches_hide_no_commits(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    folder.rename(".weft-bench")
    for name in (OLD[:8], NEW[:8]):
        Path(name).write_text("something else")
    assert bench("--compare", OLD[:8], NEW[:8]) == 0
    assert "1 slower" in capsys.readouterr().out


def test_one_file_by_two_names_is_one_run(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = sorted(folder.glob("*.json"))
    again = f"./{folder.name}/../{folder.name}/{one.name}"
    assert "are the same runs" in fails(capsys, "--compare", one, again)
    names = ["--compare", again, f"{folder.name}/{other.name}", "--history", folder.name]
    assert bench(*names, "--html", "x.html") == 0
    assert Path("x.html").read_text().count("<td>2025") == 2  # in the table of runs


def test_two_files_of_a_commit_are_compared_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a history of three runs of that commit; the page compares what the terminal does."""
    folder, page = tmp_path / "h", tmp_path / "x.html"
    old, new, _ = (write_run(folder, day=n, commit=OLD, slow={"rows: softmax": 1 + n / 3})
                   for n in range(3))  # fmt: skip
    for history in ([], ["--history", folder]):
        assert bench("--compare", old, new, "--html", page, *history) == 0
        assert "1 slower" in capsys.readouterr().out
        html = page.read_text()
        assert '<tr class="slower"><td>rows: softmax</td>' in html
        assert f"{OLD[:8]}, {old.name} (" in html
        assert "nothing to compare" not in html


# --------------------------------------------------------------------------------------------- page


def test_the_page_is_whole_without_a_script(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "history.html"
    assert main(["view", str(folder), "--html", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 2 runs\n"
    html = path.read_text(encoding="utf-8")
    static = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    assert not re.search(r"https?://(?!www\.w3\.org)|src=|@import|url\(", static)
    assert "default-src 'none'" in static
    assert static.count('<svg xmlns="http://www.w3.org/2000/svg" class="chart"') == 2 * len(TIMES)
    assert '<tr class="slower"><td>rows: softmax</td>' in static
    assert "▲ slower" in static
    assert static.count('class="point slower"') == 1
    assert f"<td>{OLD[:8]}</td>" in static
    assert "numpy 2.4.1" in static


def test_a_page_while_measuring_and_comparing(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page.html"
    names = ["--compare", NEW[:8], OLD[:8], "--history", folder]
    assert bench(*names, "--html", path) == 0
    assert "▼ faster" in path.read_text(encoding="utf-8")
    options = ["--quick", "--rounds", "1", "--against", "none", "--kernel", "max", "--repeat", "2"]
    assert bench("reductions", *options, "--history", tmp_path / "h", "--html", path) == 0
    assert len(History.read(tmp_path / "h").runs) == 2
    html = path.read_text(encoding="utf-8")
    assert "nothing to compare yet" in html
    assert html.count('class="chart" ') == 1
    one = sorted((tmp_path / "h").glob("*.json"))[0]
    assert main(["view", str(one), "--html", str(path)]) == 0
    assert main(["view", str(folder), "--html", str(path), "--passes", "cse"]) == 2
    assert "--passes is for graphs" in capsys.readouterr().err


def test_names_cannot_leave_the_page(tmp_path: Path) -> None:
    write_run(tmp_path / "h", day=0, commit=OLD, name="</script><script>alert(1)")
    write_run(tmp_path / "h", day=1, commit=NEW, name="</script><script>alert(1)")
    html = history_page(History.read(tmp_path / "h")).html
    assert html.count("<script") == 2
    assert "<script>alert" not in html


def test_a_long_history_has_a_small_page(tmp_path: Path) -> None:
    for day in range(120):
        write_run(tmp_path / "h", day=day, commit=commit_of(day), count=10)
    page = history_page(History.read(tmp_path / "h"))
    assert len(page.sides) == 24
    assert "the last 100 of 120 commits" in page.subtitle
    assert len(page.html) < 1 << 20


def test_commits_are_counted_not_their_machines(tmp_path: Path) -> None:
    for day in range(60):
        for name in ("one", "two"):
            write_run(tmp_path / "h", day=day, commit=commit_of(day), name=name, count=6)
    page = history_page(History.read(tmp_path / "h"))
    assert "commits" not in page.subtitle
    (_, (chart, _)), *_ = page.charts
    assert [len(series.points) for series in chart.series] == [60, 60]
