"""cuDNN without a GPU, for tests: what `libraries/cudnn_api.Api` has, on the memory of
`fake_driver.FakeDriver`.

Descriptors are kept as they are set and checked as the library checks them (what must be there,
what is finalized); convolutions are NumPy's, element by element as dimensions and strides say, with
zeros beyond the edges that are multiplied as others: a wrong stride, padding or order shows.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from fake_cublaslt import FakeClock, Refusing, tf32
from fake_driver import FakeDriver, stream_at

from weft.runtime.device.libraries.cudnn_api import CudnnError, Held, Kind, Name

Array = np.ndarray[Any, Any]
TYPES = {0: np.dtype(np.float32), 2: np.dtype(np.float16), 9: np.dtype(ml_dtypes.bfloat16)}
TENSOR_CORE, FFT, NONDETERMINISTIC, WINOGRAD = 0, 3, 4, 5
OPERATIONS = {Kind.FORWARD: (Name.FORWARD_ALPHA, "y"), Kind.BACKWARD_DATA: (Name.DATA_ALPHA, "x"),
              Kind.BACKWARD_FILTER: (Name.FILTER_ALPHA, "w")}  # fmt: skip
_WALK = (Name.COMPUTE_TYPE, Name.MODE, Name.DILATIONS, Name.STRIDES, Name.POST_PADDINGS,
         Name.PRE_PADDINGS, Name.SPATIAL_DIMS)  # fmt: skip
_ONE = (Name.DATA_TYPE, Name.DIMENSIONS, Name.TENSOR_STRIDES, Name.UNIQUE_ID, Name.ALIGNMENT)
#: What must be set before a descriptor can be finalized.
NEEDED = {
    Kind.CONVOLUTION: _WALK, Kind.TENSOR: _ONE, Kind.GRAPH: (Name.GRAPH_OPERATIONS,),
    Kind.HEURISTICS: (Name.HEURISTICS_GRAPH, Name.HEURISTICS_MODE, Name.HEURISTICS_DEVICE),
    Kind.ENGINE: (Name.ENGINE_GRAPH, Name.ENGINE_INDEX, Name.ENGINE_DEVICE),
    Kind.KNOB: (Name.KNOB_TYPE, Name.KNOB_VALUE), Kind.ENGINE_CONFIG: (Name.CONFIG_ENGINE,),
    Kind.PLAN: (Name.PLAN_CONFIG, Name.PLAN_DEVICE),
    Kind.VARIANT_PACK: (Name.PACK_IDS, Name.PACK_POINTERS, Name.PACK_WORKSPACE),
}  # fmt: skip


@dataclass(frozen=True)
class Engine:
    """An engine with knobs: what it says of itself, what it takes, and whether it is right. mode:
    the heuristic that offers it. status: of every call; refuses: that of its plan."""

    number: int
    ms: float = 0.01
    workspace: int = 0
    notes: tuple[int, ...] = ()
    behavior: tuple[int, ...] = ()
    knobs: tuple[tuple[int, int], ...] = ()
    wrong: bool = False
    mode: int = 3
    status: int = 0
    refuses: int = 0


@dataclass
class _Descriptor:
    kind: Kind
    held: dict[Name, Any] = field(default_factory=dict)
    final: bool = False


class FakeCudnn(Refusing):
    """Stands for `cudnn_api.Api`. failing: function -> status; without: heuristics that refuse."""

    def __init__(
        self, driver: FakeDriver, engines: list[Engine] | None = None, *, version: int = 92800,
        release: int = 13050,
    ) -> None:  # fmt: skip
        self.driver, self._version, self._release = driver, version, release
        self.engines = [Engine(1)] if engines is None else engines
        self.held: dict[int, _Descriptor] = {}
        self._numbers = itertools.count(5000)
        self.calls: list[tuple[str, int]] = []  # (kind of the operation, number of the engine)
        self.rounded: list[bool] = []  # whether operands were rounded to tf32
        self.failing: dict[str, int] = {}
        self.without: set[int] = set()
        self.asked = 0  # heuristics
        self._stream = 0

    def refusal(self, name: str, status: int) -> Exception:
        return _error(name, status)

    def version(self) -> int:
        return self._version

    def cudart(self) -> int:
        return self._release

    def create(self) -> int:
        assert self.driver.current.context, "cudnnCreate without a context"
        return 77

    def set_stream(self, handle: int, stream: int) -> None:
        assert handle == 77
        self._stream = stream

    # -- descriptors ------------------------------------------------------------------------------

    def descriptor(self, kind: Kind) -> int:
        made = next(self._numbers)
        self.held[made] = _Descriptor(kind)
        return made

    def destroy(self, descriptor: int) -> None:
        del self.held[descriptor]

    def set(self, descriptor: int, name: Name, held: Held, values: Any) -> None:
        one = self.held[descriptor]
        if one.final:
            raise _error("cudnnBackendSetAttribute", 2000)
        if held is Held.DESCRIPTOR and not all(self.held[int(v)].final for v in values):
            raise _error("cudnnBackendSetAttribute", 2004)
        one.held[name] = [float(v) if held is Held.FLOAT else int(v) for v in values]

    def finalize(self, descriptor: int) -> None:
        one = self.held[descriptor]
        if any(name not in one.held for name in NEEDED.get(one.kind, ())):
            raise _error("cudnnBackendFinalize", 2000)
        if one.kind in OPERATIONS:
            self._check(one)
        if one.kind is Kind.HEURISTICS and one.held[Name.HEURISTICS_MODE][0] in self.without:
            raise _error("cudnnBackendFinalize", 3000)
        if one.kind is Kind.PLAN and self._of_plan(one).refuses:
            raise _error("cudnnBackendFinalize", self._of_plan(one).refuses)
        if one.kind is Kind.ENGINE:
            (number,) = one.held[Name.ENGINE_INDEX]
            if all(engine.number != number for engine in self.engines):
                raise _error("cudnnBackendFinalize", 3000)
        one.final = True

    def _parts(self, one: _Descriptor) -> tuple[Any, ...]:
        """(convolution, w, x, y) of an operation."""
        first = int(OPERATIONS[one.kind][0])
        ids = [one.held[Name(first + k)][0] for k in (2, 3, 4, 5)]
        return tuple(self.held[i].held for i in ids)

    def _check(self, one: _Descriptor) -> None:
        """As the library infers the shape of y."""
        first = int(OPERATIONS[one.kind][0])
        assert [one.held[Name(first + k)] for k in (0, 1)] == [[1.0], [0.0]]
        walk, w, x, y = self._parts(one)
        assert walk[Name.COMPUTE_TYPE] == [0], "sums are in f32"
        assert walk[Name.MODE] == [1], "a correlation"
        assert walk[Name.SPATIAL_DIMS] == [len(x[Name.DIMENSIONS]) - 2]
        n, inside, *large = x[Name.DIMENSIONS]
        outside, part, *window = w[Name.DIMENSIONS]
        small = [
            1 + (size + before + after - ((taps - 1) * apart + 1)) // step
            for size, before, after, taps, apart, step in zip(
                large, walk[Name.PRE_PADDINGS], walk[Name.POST_PADDINGS], window,
                walk[Name.DILATIONS], walk[Name.STRIDES], strict=True,
            )
        ]  # fmt: skip
        paddings = walk[Name.PRE_PADDINGS] + walk[Name.POST_PADDINGS]
        if y[Name.DIMENSIONS] != [n, outside, *small] or inside % part or min(paddings) < 0:
            raise _error("cudnnBackendFinalize", 2008)
        if len({held[Name.DATA_TYPE][0] for held in (w, x, y)}) != 1:
            raise _error("cudnnBackendFinalize", 3003)

    # -- engines ----------------------------------------------------------------------------------

    def count(self, descriptor: int, name: Name, held: Held) -> int:
        assert name is Name.HEURISTICS_RESULTS, "the library says 0 of others"
        self.asked += 1
        (mode,) = self.held[descriptor].held[Name.HEURISTICS_MODE]
        return sum(engine.mode == mode for engine in self.engines)

    def get(self, descriptor: int, name: Name, held: Held, values: Any) -> list[int]:
        one = self.held[descriptor]
        match name:
            case Name.HEURISTICS_RESULTS:
                (mode,) = one.held[Name.HEURISTICS_MODE]
                found = [e for e in self.engines if e.mode == mode]
                for number, engine in zip(values, found, strict=True):
                    self.held[number] = _Descriptor(Kind.ENGINE_CONFIG, {"engine": engine}, True)
                return list(values)
            case Name.CONFIG_ENGINE:
                self.held[values[0]] = _Descriptor(
                    Kind.ENGINE, {"engine": one.held["engine"]}, True
                )
                return list(values)
            case Name.CONFIG_KNOBS:
                knobs = one.held["engine"].knobs
                for number, (kind, value) in zip(values, knobs, strict=False):
                    set_to = {Name.KNOB_TYPE: [kind], Name.KNOB_VALUE: [value]}
                    self.held[number] = _Descriptor(Kind.KNOB, set_to, True)
                return list(values[: len(knobs)])
            case Name.KNOB_TYPE | Name.KNOB_VALUE:
                return list(one.held[name])
            case Name.ENGINE_INDEX:
                return [self._engine(one).number]
            case Name.ENGINE_NUMERICAL_NOTES:
                return list(self._engine(one).notes)
            case Name.ENGINE_BEHAVIOR_NOTES:
                return list(self._engine(one).behavior)
            case Name.PLAN_WORKSPACE:
                return [self._of_plan(one).workspace]
        raise AssertionError(name)

    def _engine(self, one: _Descriptor) -> Engine:
        if "engine" in one.held:
            return one.held["engine"]
        (number,) = one.held[Name.ENGINE_INDEX]
        return next(e for e in self.engines if e.number == number)

    def _of_plan(self, plan: _Descriptor) -> Engine:
        config = self.held[plan.held[Name.PLAN_CONFIG][0]].held
        (number,) = self.held[config[Name.CONFIG_ENGINE][0]].held[Name.ENGINE_INDEX]
        knobs = [self.held[k].held for k in config.get(Name.CONFIG_KNOBS, ())]
        found = tuple([(k[Name.KNOB_TYPE][0], k[Name.KNOB_VALUE][0]) for k in knobs])
        fits = [e for e in self.engines if e.number == number and e.knobs == found]
        if not fits:
            raise _error("cudnnBackendFinalize", 3000)
        return fits[0]

    # -- convolutions -----------------------------------------------------------------------------

    def execute(self, handle: int, plan: int, pack: int) -> None:
        assert handle == 77
        engine = self._of_plan(self.held[plan])
        if engine.status:
            raise _error("cudnnBackendExecute", engine.status)
        given = self.held[pack].held
        at = dict(zip(given[Name.PACK_IDS], given[Name.PACK_POINTERS], strict=True))
        (workspace,) = given[Name.PACK_WORKSPACE]
        assert workspace % 16 == 0
        assert workspace or not engine.workspace, "no workspace"
        config = self.held[self.held[plan].held[Name.PLAN_CONFIG][0]].held
        one = self.held[config[Name.CONFIG_ENGINE][0]].held
        graph = self.held[one[Name.ENGINE_GRAPH][0]].held
        operation = self.held[graph[Name.GRAPH_OPERATIONS][0]]
        walk, *tensors = self._parts(operation)
        target = OPERATIONS[operation.kind][1]
        stream = stream_at(self._stream)
        by = stream.context
        rounds = TENSOR_CORE in engine.notes and tensors[0][Name.DATA_TYPE] == [0]
        self.calls.append((operation.kind.name, engine.number))
        self.rounded.append(rounds)

        def cells(tensor: dict[Name, Any]) -> Array:
            assert tensor[Name.ALIGNMENT] == [16]
            address = at[tensor[Name.UNIQUE_ID][0]]
            assert address % 16 == 0
            dtype = TYPES[tensor[Name.DATA_TYPE][0]]
            shape, steps = tensor[Name.DIMENSIONS], tensor[Name.TENSOR_STRIDES]
            last = sum((n - 1) * step for n, step in zip(shape, steps, strict=True)) + 1
            flat = self.driver.view(address, last * dtype.itemsize, by).view(dtype)
            apart = [step * dtype.itemsize for step in steps]
            return np.lib.stride_tricks.as_strided(flat, shape, apart)

        def work() -> None:
            if isinstance(self.driver, FakeClock):
                self.driver.now += engine.ms
            if engine.workspace:
                held = self.driver.view(workspace, engine.workspace, by)
                held[:4096] = held[-4096:] = 0xAB
            w, x, y = (cells(tensor) for tensor in tensors)
            wide = [v.astype(np.float32) for v in (w, x, y)]
            wide = [tf32(v) for v in wide] if rounds else wide
            result = {"w": w, "x": x, "y": y}[target]
            with np.errstate(all="ignore"):
                made = convolved(target, wide[0], wide[1], wide[2], walk)
                result[...] = (made + engine.wrong).astype(result.dtype)

        self.driver._put(stream, work)


def convolved(target: str, w: Array, x: Array, y: Array, walk: dict[Name, Any]) -> Array:
    """The one of w, x, y that is asked for, of the two others: a sum for each tap, over x with
    zeros around it."""
    before, after = walk[Name.PRE_PADDINGS], walk[Name.POST_PADDINGS]
    around = [(0, 0), (0, 0), *zip(before, after, strict=True)]
    padded = np.pad(np.zeros_like(x) if target == "x" else x, around)
    out = {"w": np.zeros_like(w), "x": padded, "y": np.zeros_like(y)}[target]
    groups = x.shape[1] // w.shape[1]
    inner, outer = w.shape[1], w.shape[0] // groups
    for tap in np.ndindex(*w.shape[2:]):
        seen = [
            slice(t * apart, t * apart + (size - 1) * step + 1, step)
            for t, apart, step, size in zip(
                tap, walk[Name.DILATIONS], walk[Name.STRIDES], y.shape[2:], strict=True
            )
        ]
        for g in range(groups):
            i, o = slice(g * inner, (g + 1) * inner), slice(g * outer, (g + 1) * outer)
            here, there, one = (slice(None), i, *seen), (slice(None), o), (o, slice(None), *tap)
            if target == "y":
                out[there] += np.einsum("nc...,kc->nk...", padded[here], w[one])
            elif target == "x":
                out[here] += np.einsum("nk...,kc->nc...", y[there], w[one])
            else:
                n = padded[here].shape[0]
                left = np.moveaxis(y[there], 1, 0).reshape(outer, n, -1)
                right = np.moveaxis(padded[here], 1, 0).reshape(inner, n, -1)
                out[one] += np.einsum("knp,cnp->kc", left, right)
    if target != "x":
        return out
    inside = [slice(b, b + size) for b, size in zip(before, x.shape[2:], strict=True)]
    return out[(slice(None), slice(None), *inside)]


def _error(function: str, status: int) -> CudnnError:
    return CudnnError(function, status, f"CUDNN_STATUS_{status}", "it went wrong")
