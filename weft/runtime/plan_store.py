"""Store of plans on disk, for this processor and for GPUs, and the digest by which a graph's plan
is found: equal for graphs that passes and code generation treat alike.

A graph that was compiled before, by any process, is found by its key and runs no pass again. The
cache that keeps the bytes checks them (`codegen/llvm/cache.py`): what is damaged, of other sources
or of another user is not there. What a plan is as bytes say `step_plan.py`, for this processor, and
`device/planning/stored_plan.py`, for GPUs.

For the digest the names of the graph and of its inputs do not count, nor the source lines as such:
an edited comment above a function moves them all. Which ops have a line in common does count, as
passes that compare ops may ask that. Constants count by their bytes."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from weft.codegen.engines import engine
from weft.codegen.llvm.cache import PLAN_SUFFIX, CachedRecord, describe_plan, plan_cache
from weft.codegen.llvm.jit import do_later
from weft.codegen.numba.replacements import digest as kernels_replaced
from weft.ir.dataclass import dataclass
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import DType, as_dtype
from weft.ir.errors import InternalError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import Location, Locations
from weft.ir.ops import REGISTERED
from weft.ir.ops.scalar_function import REPLACED
from weft.ir.process import load
from weft.ir.spec import AttrValue, ConstArray
from weft.ir.types import TensorType, Type
from weft.passes.manager import NamedPipeline, PassOptions, pass_name

Array = np.ndarray[Any, Any]
Fields = dict[str, Any]
_log = logging.getLogger("weft.compile")
#: Plans whose constants, those of the traced graph not counted, are larger are not kept on disk.
MOST_CONSTANT_BYTES = 16 << 20


class NotKeptError(Exception):
    """A plan holds what is not kept on disk."""


P = TypeVar("P")
#: Makes fields that JSON can hold, and the bytes that go with them, of a plan, given the constants
#: of the traced graph, which whoever reads the plan has. NotKeptError.
Pack = Callable[[Sequence[ConstArray]], tuple[Fields, bytes]]
#: The opposite. Any error says that the file is damaged.
Unpack = Callable[[Mapping[str, Any], bytes, Sequence[ConstArray]], P]


@dataclass(frozen=True)
class PlanKey:
    """What the plan of a traced graph depends on. target: as of `describe_plan`."""

    graph: Graph
    passes: tuple[str, ...]
    donated: tuple[int, ...]
    target: str = ""

    @cached_property
    def _content(self) -> tuple[str | None, list[ConstArray]]:
        """The description, None if it cannot be known, and the graph's constants."""
        digest, constants = digest_graph(self.graph)
        return describe_plan(digest, self.passes, self.donated, self.target), constants

    def load(self, unpack: Unpack[P]) -> P | None:
        """The plan; None if it is not there, or damaged."""
        cache = plan_cache()
        if cache is None or not cache.exists():
            return None
        description, constants = self._content
        if description is None:
            return None
        return cache.load_record(
            description, PLAN_SUFFIX, lambda found: unpack(found.fields, found.payload, constants)
        )

    def store(self, name: str, pack: Pack) -> None:
        """Keep a plan, if all of it can be; in another thread, when its kernels are there. name:
        for people."""

        def write() -> None:
            cache, (description, constants) = plan_cache(), self._content
            if cache is None or description is None:
                return
            try:
                packed = pack(constants)
            except NotKeptError as error:
                _log.info("cache: the plan of %s is not kept: it holds %s", name, error)
            else:
                cache.store_record(description, PLAN_SUFFIX, CachedRecord(name, *packed))

        do_later(write)


def plan_key(
    graph: Graph,
    passes: Sequence[Any],
    options: PassOptions,
    donated: Sequence[int],
    target: Callable[[], str] = str,
) -> PlanKey | None:
    """None if the plan is not kept: no cache, passes that are not weft's own, who compiles wants
    to see the passes at work, or the graph has ops whose meaning is the user's. target: asked for
    where it is."""
    watched = options.verify or options.dump is not None or "passes" in options.log
    if watched or plan_cache() is None:
        return None
    if REGISTERED and any(op.name in REGISTERED for op in graph.walk()):
        return None
    if REPLACED:  # passes may make an op that the graph has not
        return None
    if engine() != "llvm":  # Numba's code is not kept
        return None
    names = _names(passes)
    if names is not None and kernels_replaced():
        names = (*names, f"replaced {kernels_replaced()}")
    return None if names is None else PlanKey(graph, names, tuple(donated), target())


def _names(passes: Sequence[Any]) -> tuple[str, ...] | None:
    """What plans say of their passes: those of weft by name, a pipeline by its own, as the sources
    of the passes are in the key. None if one of them is the user's."""
    if isinstance(passes, NamedPipeline):
        return (f"pipeline {passes.name}",)
    # who names no passes does not wait for these modules, unless a step has to be planned
    from weft.passes.pipelines import PASSES, PIPELINES

    for name, pipeline in PIPELINES.items():
        if pipeline == tuple(passes):
            return (f"pipeline {name}",)
    names = tuple([pass_name(run) for run in passes])
    if any(PASSES.get(name) is not run for name, run in zip(names, passes, strict=True)):
        return None
    return names


def changed(graph: Graph) -> InternalError:
    """The error for a plan that passes do not make any more."""
    return InternalError(
        f"the plan of '{graph.name}' is not what weft makes of it now",
        hint="`weft cache clear` removes it, if it is on disk",
    )


def pack_arrays(arrays: Sequence[Array], traced: Sequence[ConstArray]) -> tuple[list[Any], bytes]:
    """A row for each array, as JSON has it, and bytes. NotKeptError if these are too many.

    A row is the number of a traced constant, or with `Panels` of what is packed of it, or the dtype
    and shape of an array whose bytes are stored.
    """
    # in the background nothing may be imported: a fork waits for this thread, with imports held
    origin_of = getattr(sys.modules.get("weft.codegen.tiles.panels"), "origin_of", None)
    known = {id(held.array): k for k, held in enumerate(traced)}
    rows: list[Any] = []
    stored: list[bytes] = []
    for array in arrays:
        origin = origin_of(array) if origin_of else None
        if id(array) in known:
            rows.append(known[id(array)])
        elif origin is not None and id(origin[0]) in known:
            rows.append({"packed": known[id(origin[0])], **origin[1].fields()})
        else:
            rows.append([as_dtype(array.dtype).name, list(array.shape)])
            stored.append(array.tobytes())
    nbytes = sum(map(len, stored))
    if nbytes > MOST_CONSTANT_BYTES:
        raise NotKeptError(f"{nbytes:,} bytes of constants")
    return rows, b"".join(stored)


def unpack_arrays(
    rows: Sequence[Any], payload: bytes, first: int, traced: Sequence[ConstArray]
) -> list[Array]:
    """The opposite of `pack_arrays`, whose bytes begin at `first`."""
    arrays: list[Array] = []
    for row in rows:
        if isinstance(row, int):
            arrays.append(traced[row].array)
            continue
        if isinstance(row, Mapping):
            # a step that has none does not wait for this module
            packed: Any = load("weft.codegen.tiles.panels", "packed_again")
            fields = {name: value for name, value in row.items() if name != "packed"}
            arrays.append(packed(traced[row["packed"]].array, fields))
            continue
        dtype, shape = as_dtype(row[0]).numpy, tuple(row[1])
        count = int(np.prod(shape, dtype=np.int64))
        # a copy: kernels want it aligned
        held = np.frombuffer(payload, dtype, count, first).reshape(shape).copy()
        held.setflags(write=False)
        arrays.append(held)
        first += held.nbytes
    return arrays


_PLAIN = frozenset({int, bool, float, str, type(None)})


def digest_graph(graph: Graph) -> tuple[str, list[ConstArray]]:
    """The digest (hexadecimal), and the graph's constants, each once, in an order that equal graphs
    share."""
    reader = _Reader()
    rows = reader.block(graph.block)
    digest = hashlib.sha256(repr((graph.stage, rows)).encode())
    digest.update(repr(list(reader.contents)).encode())
    return digest.hexdigest(), reader.constants


class _Reader:
    """Numbers values, types, locations and constants by their first appearance."""

    def __init__(self) -> None:
        self.constants: list[ConstArray] = []
        self.contents: dict[str, int] = {}  # number of each constant by its dtype, shape and bytes
        self._seen: dict[int, int] = {}  # the same by its identity
        self._places: dict[Location, int] = {}
        # by identity: the graph keeps them, and to hash locations takes longer than the rest
        self._lines: dict[int, tuple[int, ...]] = {}
        self._types: dict[object, str] = {}

    def block(self, block: Block) -> list[object]:
        """The block in terms of numbers and plain Python values whose repr is exact."""
        number: dict[Value, int] = {}
        for value in block.args:
            number[value] = len(number)
        rows: list[object] = [[self._type(v.type) for v in block.args]]
        for op in block.ops:
            rows.append(self._op(op, number))
            for value in op.results:
                number[value] = len(number)
        rows.append([number[v] for v in block.results])
        return rows

    def _op(self, op: Operation, number: dict[Value, int]) -> tuple[object, ...]:
        return (
            op.name,
            [number[v] for v in op.operands],
            [number[v] for v in op.control] if op.control else 0,
            [self._type(v.type) for v in op.results],
            [v if type(v) in _PLAIN else self._attr(v) for v in op.attrs.values()],
            [self.block(region) for region in op.regions] if op.regions else 0,
            self._location(op.locations),
            (op.device, op.group) if op.device or op.group else 0,
        )

    def _type(self, given: Type) -> str:
        key = (id(given.dtype), given.shape) if type(given) is TensorType else given
        text = self._types.get(key)
        if text is None:
            text = self._types[key] = str(given)
        return text

    def _location(self, given: Locations) -> tuple[int, ...]:
        found = self._lines.get(id(given))
        if found is None:
            places = self._places
            found = tuple([places.setdefault(place, len(places)) for place in given])
            self._lines[id(given)] = found
        return found

    def _attr(self, value: AttrValue) -> object:
        if isinstance(value, tuple):
            return [v if type(v) in _PLAIN else self._attr(v) for v in value]
        if isinstance(value, ConstArray):
            return ("array", self._constant(value))
        if isinstance(value, DType):
            return ("dtype", value.name)
        if isinstance(value, SymbolicDim):
            return ("dim", str(value))
        if isinstance(value, (int, float, str)):  # of a class of its own, such as NumPy's float64
            return (type(value).__name__, repr(value))
        raise TypeError(f"an attribute of type {type(value).__name__}")

    def _constant(self, held: ConstArray) -> int:
        found = self._seen.get(id(held))
        if found is None:
            array = held.array
            content = _objects(array) if array.dtype == object else _bytes(array)
            key = repr((held.dtype.name, array.dtype.str, array.shape, content))
            found = self.contents.setdefault(key, len(self.contents))
            if found == len(self.constants):
                self.constants.append(held)
            self._seen[id(held)] = found
        return found


def _objects(array: np.ndarray[Any, Any]) -> Sequence[object]:
    return [(type(x).__name__, x) for x in array.ravel().tolist()]


def _bytes(array: np.ndarray[Any, Any]) -> str:
    """Small arrays as they are; of large ones a digest."""
    if array.nbytes <= 64:
        return array.tobytes().hex()
    return "sha256 " + hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()
