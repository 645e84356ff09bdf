"""What all tests share: the `--update` option for golden cases, how hypothesis runs, a GPU over a
fake driver."""

from __future__ import annotations

import gc
import hashlib
import importlib
import os
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from example_counts import WHOLE
from gpu_kinds import REAL
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from paths import SUPPORT
from shares import thin_out

import weft
from weft.frontend.eager.numpy_calls import SWITCH
from weft.runtime.native.api import native_api

# What these assert is told as if it stood in the test.
pytest.register_assert_rewrite(*(file.stem for file in SUPPORT.rglob("*_checks.py")))

if TYPE_CHECKING:
    from fake_driver import FakeDriver

# The first call of a compiled function compiles it, so one example may take a hundred times as
# long as the next: no deadline per example. CI must give the same verdict twice on the same tree,
# so it draws the same examples each time; a developer's runs draw new ones.
settings.register_profile(
    "weft",
    deadline=None,
    print_blob=True,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=100 if WHOLE else 16,
)
settings.load_profile("weft")
if not WHOLE:
    # Hypothesis draws some numbers and texts from the sources of all modules that are loaded:
    # reading those of weft and its tests takes 20 s in each process. CI's slow tests do.
    assert callable(providers._get_local_constants)
    providers._get_local_constants = lambda: providers._local_constants

# Who works on weft wants to see weft's frames.
os.environ["WEFT_TRACEBACK"] = "full"

# Tests count what is compiled: a developer's warm cache must not change that. Tests of the cache
# turn it on in a folder of their own.
os.environ["WEFT_CACHE"] = "0"

# Eager calls are what compiled code is compared with: the interpreter carries all of them out.
# `test_eager.py` tests those that run as native code.
os.environ["WEFT_EAGER"] = "interpreter"
SWITCH.on = False  # weft is loaded already


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update`: write what the code prints now into the golden files in tests/cases."""
    parser.addoption(
        "--update",
        action="store_true",
        default=False,
        help="rewrite the expected text of tests/cases/*.weft; read the diff before committing",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse `--update` where nobody reads the diff: in CI it would make every case pass."""
    if config.getoption("--update") and "CI" in os.environ:
        raise pytest.UsageError("--update rewrites the golden files; it is not for CI")
    _keep_bytecode(config)
    _forget_old_code(config)
    if "CI" in os.environ and WHOLE:
        _load_all_of_weft()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`, the tests of a file run in one process: what they compile is compiled once."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log) if config.getoption("dist") == "load" else None


def _load_all_of_weft() -> None:
    """Examples hold constants that hypothesis finds in the modules loaded so far: all of weft's, or
    they would depend on which tests ran before in the same process."""
    for module in pkgutil.walk_packages(weft.__path__, "weft."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)


def _keep_bytecode(config: pytest.Config) -> None:
    """Where Python is told to write no bytecode, what the tests start (xdist's workers, tasks,
    programs) writes it to pytest's cache: a program that compiles every source of weft that it
    imports takes a second more."""
    if sys.dont_write_bytecode and hasattr(config, "cache"):
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(config.cache.mkdir("bytecode"))


#: In pytest's cache, what LLVM made (`code_of_before`), and how many bytes are kept of it from
#: one run to the next.
CODE, KEPT = "machine-code", 1 << 30


def _forget_old_code(config: pytest.Config) -> None:
    """What is beyond KEPT, the oldest first; one process of a run does it."""
    if hasattr(config, "workerinput") or not hasattr(config, "cache"):
        return
    known = [(path.stat(), path) for path in config.cache.mkdir(CODE).iterdir()]
    total = sum(status.st_size for status, _ in known)
    for status, path in sorted(known, key=lambda entry: entry[0].st_mtime):
        if total > KEPT:
            path.unlink(missing_ok=True)
            total -= status.st_size


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """The half million objects of 17,000 tests stay until the end: a collection in a test should
    not look through them again, 0.2 s each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def frozen_heap() -> Iterator[None]:
    """Nor through what a module's tests leave in caches."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def update(request: pytest.FixtureRequest) -> bool:
    """Whether this run rewrites golden files (`pytest --update`) and does not compare them."""
    return bool(request.config.getoption("--update"))


@pytest.fixture(scope="session", autouse=True)
def native_calls() -> None:
    """The native call path from the first call on: otherwise it depends on timing which of a
    test's calls take it. `test_native_call.py` has the tests of calls before it is there."""
    native_api()


@pytest.fixture(scope="session", autouse=True)
def code_of_before(pytestconfig: pytest.Config) -> None:
    """LLVM compiles each text once, for all processes and runs with this cache of pytest's: half of
    the suite's processor time is LLVM's, and what it makes depends on nothing but a module's text
    and the key's other parts. All else is as ever: weft emits each kernel, counts it as compiled,
    links and runs it; its own cache on disk stays off. `pytest --cache-clear` forgets the code."""
    if not hasattr(pytestconfig, "cache"):
        return
    import llvmlite

    from weft.codegen.llvm import compile as compiling  # it loads LLVM
    from weft.codegen.llvm import engine, target

    folder, compile_text = pytestconfig.cache.mkdir(CODE), engine.compile_text
    sources = [Path(str(module.__file__)).read_text("utf-8") for module in (compiling, target)]

    @cache
    def depends_on(isa: str) -> str:
        return "\n".join([llvmlite.__version__, isa, target.machine_line(), *sources])

    def known_or_compiled(text: str, loops: bool = True) -> compiling.ObjectCode:
        key = f"{depends_on(target.isa())}\n{loops}\n{text}"
        path = folder / hashlib.sha256(key.encode()).hexdigest()
        with suppress(OSError):
            data = path.read_bytes()
            size = 8 + int.from_bytes(data[:8], "little")
            return compiling.ObjectCode(data[8:size], data[size:])
        made = compile_text(text, loops)
        with suppress(OSError):  # a test may have filled the disk
            part = path.with_suffix(f".{os.getpid()}-{os.urandom(4).hex()}")
            part.write_bytes(len(made.code).to_bytes(8, "little") + made.code + made.bitcode)
            part.replace(path)
        return made

    engine.compile_text = known_or_compiled


@pytest.fixture(scope="session", autouse=True)
def quick_peaks() -> None:
    """What the machine can do is measured once in each process, and as quickly as that goes: no
    test asks how exact it is."""
    from weft.runtime.trace import peaks  # it loads a part of the compiler

    measure = peaks.measure_peaks
    peaks.measure_peaks = lambda *, quick=True: measure(quick=True)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FakeDriver]]:
    """Called with options of a `FakeDriver`: from then on the machine's GPUs are those of one,
    whose streams are as lazy as they may be."""
    from cuda_device import use_fake  # most tests need no part of a GPU

    yield partial(use_fake, monkeypatch)
    gc.collect()


@pytest.fixture(params=["emulated", "faked", REAL])
def gpu(
    request: pytest.FixtureRequest, fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> str:
    """Each kind of /gpu:0; the machine's own if `pytest -m gpu` asks for it."""
    if request.param == "faked":
        fake()
    else:
        _use(request.param, monkeypatch)
    return str(request.param)


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """/gpu:0 is emulated; with `gpu_kinds.on_a_real_one_too` it is the machine's own, too."""
    kind = str(getattr(request, "param", "emulated"))
    _use(kind, monkeypatch)
    return kind


def _use(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "emulated":
        monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    else:
        from cuda_device import use_device

        use_device(kind, monkeypatch)


#: Files with tests of each stage that take a minute together: `pytest -n 2 -m quick`.
QUICK = {
    "ir": {"verify", "ops_type_rules", "ops_reduction", "ops_structural", "dims", "interpreter"},
    "passes": {"pass_manager", "passes", "memory", "placement", "partition_edges"},
    "codegen": {"codegen_jit", "index_errors", "loop_parts", "gemm_prologues"},
    "runtime": {"dataflow_executor", "resources", "queue", "saver_format"},
    "frontend": {"errors", "user_errors", "function", "nn", "control_flow", "autodiff_api",
                 "indexing", "pytree", "methods"},
    "session": {"session", "session_errors", "switch_merge", "control_effects"},
    "cluster": {"cluster_spec", "comm_rendezvous", "cluster_control"},
    "gpu": {"device_loops", "session_gpu"},
    "programs": {"digits"},
}  # fmt: skip


def _is_quick(item: pytest.Item) -> bool:
    files = QUICK.get(item.path.parent.name, set())
    others = ("slow", "net", "gpu", "docs", "browser")
    return item.path.stem.removeprefix("test_") in files and not any(
        item.get_closest_marker(name) for name in others
    )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A line for each reason why tests were skipped, with their number, in place of a line each."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ").splitlines()[0] for report in reports
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to CI's slow tests what is beyond a test's share (`shares.py`), and let those try more
    examples of every test with hypothesis that says no number of its own. The longest come first,
    or a worker would be at them when the others are done. What measures on a GPU comes last:
    `pytest -m gpu` checks before it measures."""
    thin_out(items)
    for item in items:
        used = getattr(getattr(item, "obj", None), "_hypothesis_internal_use_settings", None)
        if used is not None and used.max_examples == settings.default.max_examples:
            item.add_marker(pytest.mark.examples)
        if _is_quick(item):
            item.add_marker(pytest.mark.quick)
    items.sort(key=_turn)


#: The test that takes minutes for each of its cases with all examples.
_LONGEST = "test_ways.py::test_random_programs["


def _turn(item: pytest.Item) -> int:
    """Small numbers come first."""
    if _LONGEST in item.nodeid:
        return 0
    return 2 if item.get_closest_marker("gpu") and _alone(item) else 1


def _alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None
