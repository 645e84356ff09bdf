"""The examples in the docstrings of public names: each runs and shows what it says, as pages do.

An example is a doctest, whose names are `wf` and `np`. Floats that depend on the instruction set
in their last bit are rounded there. `pytest tests/docs/test_docstrings.py -k wf.nn.relu` runs one.
"""

from __future__ import annotations

import doctest
import inspect
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.extend.ops import unregister_op
from weft.ir.ops import REGISTERED

pytestmark = pytest.mark.docs

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

#: Public functions and classes of `wf` without an example, each with the reason.
WITHOUT: dict[str, str] = {}


def shown(module: ModuleType) -> dict[str, Any]:
    """The public names of a module, and what they stand for."""
    return {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}


def documented(thing: Any) -> Iterator[tuple[str, Any]]:
    """What has a docstring in a public object: itself (named ""), and the public methods and
    properties of a class."""
    yield "", thing
    if not isinstance(thing, type):
        return
    for name in dir(thing):
        member = inspect.getattr_static(thing, name)
        member = getattr(member, "__func__", member)  # of a static or class method
        member = getattr(member, "fget", member)  # of a property
        if not name.startswith("_") and isinstance(member, FunctionType):
            yield f".{name}", member


def has_example(thing: Any) -> bool:
    """Whether its own docstring has one."""
    return ">>> " in (thing.__doc__ or "")


def place(thing: Any) -> tuple[str | None, int]:
    """The file of a docstring, and the line where it begins, from 0 on."""
    if isinstance(thing, ModuleType):
        return thing.__file__, 0
    try:
        lines, first = inspect.getsourcelines(inspect.unwrap(thing))
        file = inspect.getsourcefile(inspect.unwrap(thing))
    except (OSError, TypeError):  # made while weft runs
        return None, 0
    before = next((n for n, line in enumerate(lines) if '"""' in line), 0)
    return file, first - 1 + before


def examples() -> dict[str, list[doctest.DocTest]]:
    """By public name the docstrings that have examples; each object's once, by its first name."""
    modules = {"wf": wf} | {
        f"wf.{name}": thing for name, thing in shown(wf).items() if isinstance(thing, ModuleType)
    }
    things = dict[str, Any](modules)
    for prefix, module in modules.items():
        things |= {f"{prefix}.{name}": thing for name, thing in shown(module).items()}
    found: dict[str, list[doctest.DocTest]] = {}
    seen = set[int]()
    for name, thing in things.items():
        if not isinstance(thing, FunctionType | ModuleType | type):
            continue  # a constant, or a dtype: its class has the docstring
        for suffix, part in documented(thing):
            if id(part) not in seen and has_example(part):
                found.setdefault(name, []).append(parsed(name + suffix, part))
            seen.add(id(part))
    return found


def parsed(name: str, thing: Any) -> doctest.DocTest:
    """The docstring's examples."""
    return doctest.DocTestParser().get_doctest(thing.__doc__, {}, name, *place(thing))


def report(test: doctest.DocTest) -> str:
    """What doctest says of examples that went wrong, with file and line; "" if none did. A warning
    is an error."""
    said: list[str] = []
    test.globs = {"wf": wf, "np": np, "__name__": "docstring"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        doctest.DocTestRunner(verbose=False, optionflags=FLAGS).run(test, out=said.append)
    return "".join(said)


EXAMPLES = examples()


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty working folder and an empty default graph; the number of threads stays."""
    monkeypatch.chdir(tmp_path)
    threads, registered = wf.get_num_threads(), set(REGISTERED)
    wf.tf1.reset_default_graph()
    yield
    wf.tf1.reset_default_graph()
    for name in set(REGISTERED) - registered:
        unregister_op(name)
    if wf.get_num_threads() != threads:
        wf.set_num_threads(threads)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str) -> None:
    wrong = "".join(map(report, EXAMPLES[name]))
    assert not wrong, wrong


def test_every_public_function_and_class_has_an_example() -> None:
    bare = {
        name
        for name, thing in shown(wf).items()
        if isinstance(thing, FunctionType | type) and not has_example(thing)
    }
    assert sorted(bare - WITHOUT.keys()) == []
    assert sorted(WITHOUT.keys() - bare) == [], "these have an example, or are gone"


def wrong_result() -> None:
    """A sum.

    >>> wf.add(1, 1)
    Tensor(3, dtype=int64, weak)
    """


def with_a_warning() -> None:
    """A warning.

    >>> import warnings
    >>> warnings.warn("mind", stacklevel=1)
    """


@pytest.mark.parametrize(
    ("function", "line", "said"),
    [(wrong_result, 3, "Tensor(2, dtype=int64, weak)"), (with_a_warning, 4, "UserWarning: mind")],
)
def test_what_is_wrong_is_told(function: Callable[[], None], line: int, said: str) -> None:
    told = report(parsed("it", function))
    at = function.__code__.co_firstlineno + line
    assert f'File "{__file__}", line {at}, in it' in told
    assert said in told
