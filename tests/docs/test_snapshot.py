"""The snapshot of plans and kernels (`tests/snapshot`): equal in every process, and a difference of
two is told in few lines."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from paths import TESTS
from snapshot.compare import difference, report
from snapshot.record import Writer, numbered_lines, safe

TOOL = TESTS / "snapshot"
#: A program of each kind: functions, cases, sessions of open sizes, on the executor, tasks, GPUs.
SOME = (
    "training/embedding", "training/lstm", "cases/fuse_epilogues/", "nets/00", "random/00",
    "sessions/classifier_of_any_size", "sessions/dynamic_sizes", "sessions/queue_to_training",
    "tasks/loop_over_tasks", "devices/queue_to_gpu",
)  # fmt: skip


def run(*args: str, seed: int = 0) -> subprocess.CompletedProcess[str]:
    """The command in a process with its own order of sets."""
    return subprocess.run(
        [sys.executable, str(TOOL), *args],
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip


def dump(folder: Path, targets: tuple[str, ...], only: tuple[str, ...], seed: int) -> str:
    args = [a for target in targets for a in ("--target", target)]
    args += [a for part in only for a in ("--only", part)]
    done = run("dump", str(folder), *args, seed=seed)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_equal(tmp_path: Path, targets: tuple[str, ...], only: tuple[str, ...] = ()) -> str:
    said = dump(tmp_path / "a", targets, only, 1)
    dump(tmp_path / "b", targets, only, 2)
    done = run("diff", str(tmp_path / "a"), str(tmp_path / "b"))
    assert done.returncode == 0, done.stdout
    assert " 0 changed, 0 are gone, 0 are new" in done.stdout
    return said


@pytest.mark.slow
def test_equal_in_two_processes(tmp_path: Path) -> None:
    """Some of each kind; on the CPU for an instruction set that this machine may lack."""
    said = check_equal(tmp_path, ("x86-64-v4", "sm_90"), SOME)
    assert "x86-64-v4: " in said
    assert "(0 refused)" in said
    cpu, gpu = tmp_path / "a" / "x86-64-v4", tmp_path / "a" / "sm_90"
    for plan, names in {
        cpu / "training/lstm/function": {"plan.txt", "table.txt", "ir.txt", "kernels"},
        gpu / "training/lstm/gpu": {"plan.txt", "table.txt", "ir.txt", "kernels"},
        cpu / "sessions/classifier_of_any_size/auto": {"feeds-0", "feeds-1", "feeds-2"},
    }.items():
        assert {p.name for p in plan.iterdir()} == names
    sized = cpu / "sessions/classifier_of_any_size/auto"
    assert not (sized / "feeds-0/sizes.txt").exists()
    assert (sized / "feeds-1/sizes.txt").read_text().startswith("conditions ")
    assert (cpu / "training/lstm/function/kernels/gemm_f32.ll").read_text().count("define void")
    assert list((gpu / "training/lstm/gpu/kernels").glob("*.cu"))
    assert "send(" in (cpu / "tasks/loop_over_tasks/tasks/parts.txt").read_text()
    lowered = (cpu / "sessions/queue_to_training/auto/ir.txt").read_text()
    assert "dequeue(" in lowered
    assert str(TESTS) not in lowered
    kernel = tmp_path / "b" / "x86-64-v4/training/lstm/function/kernels/gemm_f32.ll"
    text = kernel.read_text()
    kernel.unlink()  # others may be the same file
    kernel.write_text(text.replace("nounwind", "nounwind cold", 1))
    done = run("diff", str(tmp_path / "a"), str(tmp_path / "b"))
    assert done.returncode == 1
    assert (
        "changed: x86-64-v4/training/lstm/function\n  kernels/gemm_f32.ll: 2 lines" in done.stdout
    )


@pytest.mark.slow
def test_the_whole_corpus_is_equal_in_two_processes(tmp_path: Path) -> None:
    said = check_equal(tmp_path, ("x86-64-v3", "sm_90"))
    assert int(said.split()[1]) > 500  # programs


# ------------------------------------------------------------------------------------- differences
PLAN = {
    "plan.txt": "1. kernel add_mul\n2. kernel add_mul-2\n",
    "ir.txt": '%1 = fused(%0) {kind="add_mul"}\n',
    "kernels/add_mul.ll": "define one\n",
    "kernels/add_mul-2.ll": "define two\n",
}


def written(folder: Path, **plans: dict[str, str]) -> Path:
    writer = Writer(folder)
    for name, files in plans.items():
        writer.plan(name, "function", partial(dict, files))
    writer.close()
    return folder


def test_a_changed_kernel_is_shown_once(tmp_path: Path) -> None:
    changed = {**PLAN, "kernels/add_mul.ll": "define three\n"}
    before = written(tmp_path / "a", p=PLAN, q=PLAN, r=PLAN)
    after = written(tmp_path / "b", p=changed, q=changed, r=PLAN)
    made = difference(before, after)
    assert (sorted(made.changed), made.equal) == (["p/function", "q/function"], ["r/function"])
    said = "\n".join(report(made))
    assert "changed files: 2 *.ll" in said
    assert said.count("-define one") == said.count("+define three") == 1
    assert "kernels/add_mul.ll: as in p/function/kernels/add_mul.ll" in said
    done = run("diff", str(before), str(after), "--quiet")
    assert (done.returncode, done.stdout) == (1, "")


def test_a_kernel_that_is_called_otherwise_is_a_rename(tmp_path: Path) -> None:
    renamed = {
        path.replace("add_mul", "fma"): text.replace("add_mul", "fma")
        for path, text in PLAN.items()
    }
    made = difference(written(tmp_path / "a", p=PLAN), written(tmp_path / "b", p=renamed))
    assert not made
    assert made.renamed == {"add_mul": "fma", "add_mul-2": "fma-2"}
    assert "  add_mul -> fma" in list(report(made))


def test_a_rename_hides_no_change(tmp_path: Path) -> None:
    other = {**PLAN, "kernels/fma.ll": PLAN["kernels/add_mul.ll"], "ir.txt": "other\n"}
    del other["kernels/add_mul.ll"]
    made = difference(written(tmp_path / "a", p=PLAN), written(tmp_path / "b", p=other))
    assert sorted(made.changed["p/function"].changed) == ["ir.txt", "plan.txt"]


def test_programs_on_one_side(tmp_path: Path) -> None:
    made = difference(
        written(tmp_path / "a", p=PLAN, q=PLAN), written(tmp_path / "b", q=PLAN, r=PLAN)
    )
    assert (made.removed, made.added, made.equal) == (
        ["p/function"],
        ["r/function"],
        ["q/function"],
    )
    said = list(report(made))
    assert said[0] == "1 plans are equal, 0 changed, 1 are gone, 1 are new"
    assert said[1:] == ["gone: p/function", "new: r/function"]


def test_diffs_are_short(tmp_path: Path) -> None:
    long = {"plan.txt": "".join(f"line {i}\n" for i in range(1000))}
    other = {"plan.txt": "".join(f"other {i}\n" for i in range(1000))}
    before = written(tmp_path / "a", **{f"p{i}": {**long, "x": str(i)} for i in range(50)})
    after = written(tmp_path / "b", **{f"p{i}": {**other, "x": str(-i)} for i in range(50)})
    said = list(report(difference(before, after), 60))
    assert "  plan.txt: 2000 lines" in said
    assert len(said) < 250


def test_no_folder_is_told() -> None:
    done = run("diff", "/nowhere/a", "/nowhere/b")
    assert (done.returncode, done.stderr) == (2, "there is no snapshot in /nowhere/a\n")


def test_lines_of_programs_are_numbered() -> None:
    """A file that moves, and lines that shift, change nothing."""

    def texts(file: str, first: int) -> dict[str, str]:
        name = Path(file).stem
        ir = (
            f"%0 = a() loc({name}:{first + 9}:5)\n%1 = b() loc({name}:{first}:7, {first + 9}:5)\n"
            f'file {name} = "{file}"\n'
        )
        plan = f"1. kernel -> f32[] at {name}.py:{first}  # {file}:{first + 9}:5\n"
        return {"ir.txt": ir + ir, "plan.txt": plan}

    one = numbered_lines(texts("/x/tests/m.py", 3))
    assert one == numbered_lines(texts("/y/tests/deep/n.py", 40))
    assert one["ir.txt"] == "%0 = a() loc(@2)\n%1 = b() loc(@1, @2)\n" * 2
    assert one["plan.txt"] == "1. kernel -> f32[]  # @2\n"


@pytest.mark.parametrize("text", ["at 0x7f1234567890", "in /home/someone/x", "/tmp/weft-1"])
def test_what_is_of_this_machine_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="of this machine"):
        written(tmp_path / "a", p={"plan.txt": text})


def test_names_are_paths() -> None:
    assert safe("training/mlp, Adam") == "training/mlp_Adam"
    assert safe("api/einsum:...ij,jk->ik") == "api/einsum_...ij_jk-_ik"
