"""The watchers of steps: what WEFT_CHECK, WEFT_VERIFY=native, WEFT_RECORD and `wf.record` ask for.

Compiled functions and sessions look once, when they are made or compiled, and again when recording
begins or ends (`watching_changed`): a step that nobody watches is called as if there were no
watchers."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from weft.ir.process import ForkLock
from weft.passes.manager import NATIVE

if TYPE_CHECKING:
    from weft.runtime.record.traced_step import Watcher

_ASKED = ("WEFT_CHECK", "WEFT_RECORD")


class Watched(Protocol):
    """Who runs steps through watchers."""

    def watch(self) -> None:
        """Look for the watchers again."""
        ...


_all: weakref.WeakSet[Watched] = weakref.WeakSet()
_lock = ForkLock()
_recording = False


def add_watched(one: Watched) -> None:
    """`one.watch()` is called when recording begins or ends."""
    with _lock:
        _all.add(one)


def watching_changed(is_on: Callable[[], bool]) -> None:
    """Recording has begun, or ended; is_on: says which."""
    global _recording
    with _lock:
        _recording = is_on()
        for one in list(_all):
            one.watch()


def watchers() -> Sequence[Watcher]:
    """The watchers of steps that run from now on, the outermost first. InvalidArgumentError and
    PassError for an environment that asks for what there is not."""
    verify = os.environ.get("WEFT_VERIFY") == NATIVE
    if not (_recording or verify or any(map(os.environ.get, _ASKED))):
        return ()
    # who watches nothing does not wait for these modules
    from weft.frontend.compile.value_checks import ValueChecks, wanted
    from weft.runtime.record.recorder import recorder
    from weft.runtime.record.verify_native import NativeVerifier

    found: list[Watcher] = []
    made, kinds = recorder(), wanted()
    if made is not None:
        found.append(made)
    if kinds:
        found.append(ValueChecks(kinds))
    if verify:
        found.append(NativeVerifier())
    return found
