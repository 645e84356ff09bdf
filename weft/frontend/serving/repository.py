"""The models that a server has, version by version, and how versions come and go while it serves.

A path is a bundle, which is version 1, or a folder of versions whose names are integers, as
TensorFlow Serving has it: `classifier/1/`, `classifier/2/`. As there, the newest is served, and a
new one is loaded and tried beside the old one, which is dropped only then. One that cannot be
loaded leaves what is served as it is."""

from __future__ import annotations

import gc
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from weft.frontend.bundle.files import is_bundle
from weft.frontend.bundle.load import load
from weft.frontend.serving.models import Signature, Version
from weft.ir.dataclass import dataclass
from weft.ir.errors import (
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    WeftError,
)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
#: States of versions, as TensorFlow Serving names them.
LOADING, AVAILABLE, UNLOADING, END = "LOADING", "AVAILABLE", "UNLOADING", "END"
#: How many versions that are gone, or could not be loaded, a model tells of.
_KEPT = 8
#: What tells one content of a bundle's folder from another.
Mark = tuple[object, ...]


@dataclass
class State:
    """What became of a version of a model. error: why it could not be loaded, or ""; mark: of the
    content that was read."""

    number: int
    state: str
    error: str = ""
    mark: Mark = ()


class Model:
    """A model by its name. versions: those that are served, by number; states: of these, and of
    what came before or failed; unreadable: why its folder could not be listed at last, or "".

    A mapping that was read stays as it is: changes make another one."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path
        self.versions: Mapping[int, Version] = {}
        self.states: Mapping[int, State] = {}
        self.is_wanted, self.unreadable = True, ""
        self._telling = threading.Lock()

    def newest(self) -> Version:
        """UnavailableError if none is served."""
        versions = self.versions
        if not versions:
            raise UnavailableError(f"no version of model '{self.name}' is loaded")
        return versions[max(versions)]

    def tell(self, state: State, after: State | None = None) -> bool:
        """Note the state of a version; the oldest of those that are over are forgotten. after: only
        if this is its state now; whether it was."""
        with self._telling:  # requests that end tell so, too
            if after is not None and self.states.get(state.number) != after:
                return False
            states = {**self.states, state.number: state}
            over = sorted(n for n, s in states.items() if s.state == END)
            for number in over[: max(0, len(over) - _KEPT)]:
                del states[number]
            self.states = states
        return True


class Repository:
    """The models that a server has: versions by name and number.

    paths: `NAME=PATH` or `PATH`, whose last part then is the name. all_versions: load each version
    of a folder of versions, instead of the newest alone. prepared: called with each version that is
    loaded before it is served; ended: with model and number of each that is not used any more;
    collect: in a thread, when a version is not used any more.
    Errors: as `wf.load`, where not one version of a model can be loaded; NotFoundError for a path
    that is neither a bundle nor a folder of versions, InvalidArgumentError for a name that is none
    or is there twice."""

    def __init__(self, paths: Sequence[str], all_versions: bool = False) -> None:
        self.models: dict[str, Model] = {}
        self.all_versions = all_versions
        self.prepared: Callable[[Version], object] = lambda version: None
        self.ended: Callable[[str, int], object] = lambda model, number: None
        self.collect: Callable[[], object] = gc.collect
        self._changing = threading.Lock()
        for given in paths:
            name, path = named_path(given)
            if name in self.models:
                raise InvalidArgumentError(
                    f"there are two models '{name}'", hint="NAME=PATH gives one another name"
                )
            self.models[name] = Model(name, path)
        for model in self.models.values():
            try:
                found = versions_at(model.path)
            except OSError:
                found = {}
            if not found:
                raise NotFoundError(
                    f"'{model.path}' is neither a bundle nor a folder of versions",
                    hint="wf.export writes bundles; versions are folders whose names are integers: "
                    f"{model.path}/1/bundle.json",
                )
            failed = self._update(model, found)
            if failed is not None and not model.versions:
                raise failed

    def find(self, model: str, version: str | None = None) -> Version:
        """A version of a model, the newest one by default. NotFoundError for one that there is not,
        UnavailableError for a model of which none is loaded."""
        known = self.model(model)
        if version is None:
            return known.newest()
        served = {str(n): v for n, v in known.versions.items()}
        if version not in served:
            raise NotFoundError(
                f"model '{model}' has no version '{version:.40}': "
                f"{', '.join(served) or 'none'} is loaded"
            )
        return served[version]

    def model(self, name: str) -> Model:
        """NotFoundError for a name that is none."""
        if name not in self.models:
            raise NotFoundError(f"there is no model '{name:.100}'")
        return self.models[name]

    def signatures(self) -> list[tuple[Version, Signature]]:
        """All signatures that are served, with the versions that they are of."""
        versions = [v for model in self.models.values() for v in model.versions.values()]
        return [(v, s) for v in versions for s in v.signatures.values()]

    # ---------------------------------------------------------------------- while it is served

    def refresh(self) -> None:
        """Take up what has changed in folders of versions. What goes wrong is logged, and told by
        the states of versions."""
        with self._changing:
            for model in self.models.values():
                if not model.is_wanted or _is_one_bundle(model.path):
                    continue
                try:
                    found, model.unreadable = versions_at(model.path), ""
                except OSError as error:  # a disk that is away for a moment is no reason to stop
                    if not model.unreadable:
                        _log().error("model '%s': its folder cannot be read: %s", model.name, error)
                    model.unreadable = str(error)
                    continue
                self._update(model, found)

    def load(self, name: str) -> None:
        """Load a model again: versions that are new, and those whose files are others now. Errors
        as `model`, and that of the newest version if it cannot be loaded."""
        model = self.model(name)
        with self._changing:
            model.is_wanted = True
            try:
                found, model.unreadable = versions_at(model.path), ""
            except OSError as error:
                raise UnavailableError(f"the folder of '{name}' cannot be read: {error}") from None
            failed = self._update(model, found, again=True)
            if failed is not None:
                raise failed
            if not model.versions:
                raise NotFoundError(f"there is no version of '{name}' at {model.path}")

    def unload(self, name: str) -> None:
        """Serve no version of a model from now on; requests that are under way are answered.
        NotFoundError for a name that is none."""
        model = self.model(name)
        with self._changing:
            model.is_wanted = False
            self._drop(model, list(model.versions))

    def _update(
        self, model: Model, found: Mapping[int, str], again: bool = False
    ) -> WeftError | None:
        """Load what is to be served of the versions that are there, then drop what is not; the
        error of the newest. again: also what failed before, and what has changed."""
        chosen, first = list[int](), None
        for number in sorted(found, reverse=True):
            error = self._provide(model, number, found[number], again)
            first = first or error
            if number in model.versions:
                chosen.append(number)
                if not self.all_versions:
                    break
        if len(chosen) == len(found) or (chosen and not self.all_versions):
            self._drop(model, [n for n in model.versions if n not in chosen])
        elif chosen:  # of all versions, some failed: what is still there stays
            self._drop(model, [n for n in model.versions if n not in found])
        return first

    def _provide(self, model: Model, number: int, place: str, again: bool) -> WeftError | None:
        """Have a version served; what is against it."""
        mark, known = _mark(place), model.states.get(number)
        if number in model.versions and not (again and known and known.mark != mark):
            return None
        if known is not None and known.error and known.mark == mark and not again:
            return UnavailableError(known.error)
        was_served = number in model.versions
        if not was_served:
            model.tell(State(number, LOADING, mark=mark))
        try:
            version = Version(model.name, number, load(place))
            self.prepared(version)
        except Exception as error:  # whatever is wrong with it, what is served goes on
            what = (
                error.what if isinstance(error, WeftError) else f"{type(error).__name__}: {error}"
            )
            model.tell(State(number, AVAILABLE if was_served else END, what, mark))
            _log().error("version %d of model '%s' was not loaded: %s", number, model.name, what)
            return error if isinstance(error, WeftError) else UnavailableError(what)
        old = model.versions.get(number)
        model.versions = {**model.versions, number: version}
        model.tell(State(number, AVAILABLE, mark=mark))
        if old is not None:
            old.when_idle(self._collect)
        return None

    def _drop(self, model: Model, numbers: Sequence[int]) -> None:
        """Serve these versions no longer. They are kept until no request uses them."""
        dropped = [model.versions[n] for n in numbers]
        model.versions = {n: v for n, v in model.versions.items() if n not in numbers}
        for version in dropped:
            model.tell(State(version.number, UNLOADING))

            def ended(number: int = version.number) -> None:
                if model.tell(State(number, END), after=State(number, UNLOADING)):
                    self.ended(model.name, number)
                self._collect()

            version.when_idle(ended)

    def _collect(self) -> None:
        """Give the memory of versions back that are no longer used: compiled functions are in
        circles of references."""
        threading.Thread(target=self.collect, name="weft serve collects", daemon=True).start()


def collect_and_freeze() -> None:
    """A full collection, after which collections look at none of what is there: those of all
    objects of a server take 0.1 s. For processes that do nothing but serve."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _log() -> logging.Logger:
    return logging.getLogger("weft.serving")


def named_path(given: str) -> tuple[str, str]:
    """The name and the path of a model: `NAME=PATH`, or `PATH`, which is named after its folder.
    InvalidArgumentError for a name that is none.

    >>> from weft.frontend.serving.repository import named_path
    >>> named_path("m=a/b"), named_path("a/b/")
    (('m', 'a/b'), ('b', 'a/b/'))
    """
    name, equals, path = given.partition("=")
    if not equals:
        path = given
        name = path.rstrip("/").rpartition("/")[2] if "://" in path else Path(path).resolve().name
    if _NAME.fullmatch(name) is None:
        raise InvalidArgumentError(
            f"'{name:.100}' is no name for a model: letters, digits, '_', '-' and '.', at most 100",
            hint="NAME=PATH gives a bundle another name",
        )
    return name, path


def _is_one_bundle(path: str) -> bool:
    return "://" in path or is_bundle(path)


def versions_at(path: str) -> dict[int, str]:
    """Where each version of a model is; none where there are none. OSError if the folder cannot be
    listed."""
    if is_bundle(path):
        return {1: path}
    if "://" in path:
        return {}
    names = sorted(name for name in os.listdir(path) if re.fullmatch(r"[0-9]{1,18}", name))
    places = {int(name): str(Path(path, name)) for name in names}
    return {number: place for number, place in places.items() if is_bundle(place)}


def _mark(place: str) -> Mark:
    """What changes when other files are put in a bundle's place; nothing of one at a URL."""
    if "://" in place:
        return ()
    try:
        with os.scandir(place) as entries:
            told = [(e.name, e.stat()) for e in entries]
    except OSError:
        return ()
    return tuple(sorted((name, s.st_size, s.st_mtime_ns, s.st_ino) for name, s in told))
