"""cuDNN 9 by its backend API: graphs of one convolution, lists of engines, plans, calls, errors.

Taken are only engines that say of themselves that they give the same bits on every run, add up in
f32, and do each sum by itself: a transform (Winograd's, or Fourier's) makes NaN of neighbours of
NaN, and rounds otherwise. In `ieee` none that uses tensor cores for f32, which is tf32.

Heuristics and plans are asked for a described device, not for a handle, so that tests can ask
NVIDIA's library for the plans of GPUs that are not there (`tests/support/gpu/real_cudnn.py`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakValueDictionary

from weft.ir.dataclass import dataclass
from weft.ir.errors import ToolchainError, UnsupportedError
from weft.runtime.device.gemm_conv import Conv
from weft.runtime.device.libraries.cudnn_api import (
    CudnnError,
    Held,
    Kind,
    Name,
    failed,
    installed,
    load,
)
from weft.runtime.device.libraries.library import Algorithm, LibraryLaunch
from weft.runtime.device.protocol import Array

#: 9.8 is the first version that describes devices.
_OLDEST = 908
_OF_CUDNN_9 = 9
#: `cudnnDataType_t`; sums are CUDNN_DATA_FLOAT.
_DTYPES = {"f32": 0, "f16": 2, "bf16": 9}
_FLOAT = 0
_CROSS_CORRELATION = 1
#: `cudnnBackendNumericalNote_t`: what no engine may say, and what none may say of ieee f32.
_TENSOR_CORE, _DOWN_CONVERT_INPUTS, _REDUCED_REDUCTION, _FFT, _NONDETERMINISTIC = range(5)
_WINOGRAD = frozenset({5, 6, 7, 8})
_REFUSED = (
    frozenset({_DOWN_CONVERT_INPUTS, _REDUCED_REDUCTION, _FFT, _NONDETERMINISTIC}) | _WINOGRAD
)
#: `cudnnBackendBehaviorNote_t`: its code would go with the plan, while the device may run it.
_RUNTIME_COMPILATION = 0
#: `cudnnBackendHeurMode_t`: by expected speed; what does anything at all.
_MODES = (3, 2)
#: Settings that are tried of each engine, and the most bytes of a workspace.
_OF_AN_ENGINE, _MOST_WORKSPACE = 2, 1 << 30
_MOST_NOTES, _MOST_KNOBS = 16, 64
_X, _W, _Y = 1, 2, 3
_ALIGNMENT = 16
#: Kind of the op, alpha, beta, the convolution, W, X, Y.
_OPERATIONS: dict[str, tuple[Kind, tuple[Name, ...]]] = {
    "conv": (Kind.FORWARD, (Name.FORWARD_ALPHA, Name.FORWARD_BETA, Name.FORWARD_CONVOLUTION,
                            Name.FORWARD_W, Name.FORWARD_X, Name.FORWARD_Y)),
    "conv_input": (Kind.BACKWARD_DATA, (Name.DATA_ALPHA, Name.DATA_BETA, Name.DATA_CONVOLUTION,
                                        Name.DATA_W, Name.DATA_DX, Name.DATA_DY)),
    "conv_kernel": (Kind.BACKWARD_FILTER, (Name.FILTER_ALPHA, Name.FILTER_BETA,
                                           Name.FILTER_CONVOLUTION, Name.FILTER_DW, Name.FILTER_X,
                                           Name.FILTER_DY)),
}  # fmt: skip
#: Whose addresses the words of a call are: of the result and both operands.
_WORDS = {"conv": (_Y, _X, _W), "conv_input": (_X, _Y, _W), "conv_kernel": (_W, _X, _Y)}


@dataclass(frozen=True, slots=True)
class _Engine:
    """An engine with the settings of its knobs: (type, value)."""

    index: int
    knobs: tuple[tuple[int, int], ...]

    @property
    def code(self) -> bytes:
        """What finds it again."""
        return " ".join([str(self.index), *(f"{k}={v}" for k, v in self.knobs)]).encode()

    @staticmethod
    def of(code: bytes) -> _Engine:
        """That of a `code`."""
        index, *knobs = code.decode().split(" ")
        pairs = [one.split("=") for one in knobs]
        return _Engine(int(index), tuple([(int(k), int(v)) for k, v in pairs]))

    def __str__(self) -> str:
        knobs = ", ".join(f"{k}={v}" for k, v in self.knobs)
        return f"engine {self.index}" + (f" ({knobs})" if knobs else "")


class Descriptors:
    """Descriptors that live and die together."""

    def __init__(self, library: Cudnn) -> None:
        self._library, self._made = library, list[int]()

    def new(self, kind: Kind) -> int:
        """One that is not finalized."""
        made = int(self._library.call("descriptor", kind))
        self._made.append(made)
        return made

    def make(self, kind: Kind, *values: tuple[Name, Held, Sequence[Any]]) -> int:
        """One with these attributes, finalized."""
        made, call = self.new(kind), self._library.call
        for name, held, some in values:
            call("set", made, name, held, some)
        call("finalize", made)
        return made

    def destroy(self) -> None:
        """Destroy them now: the device is not at them."""
        while self._made:
            self._library.call("destroy", self._made.pop())

    def __del__(self) -> None:
        # the device may be at them: `Cudnn.sweep` destroys them
        self._library.dead.extend(self._made)


class Cudnn:
    """The library for the device whose context is current. driver: the release of CUDA that the
    driver runs, 13000. synchronize: waits for the device.

    ToolchainError for a library that is too old, too new for the driver, or not whole.
    """

    def __init__(self, api: Any, driver: int, synchronize: Callable[[], None]) -> None:
        self._prepare(api, synchronize)
        number = int(api.version())
        if number // 100 < _OLDEST or number // 10000 != _OF_CUDNN_9:
            raise ToolchainError(
                f"cuDNN {self.version} cannot be used: weft needs 9.8 or later, of cuDNN 9",
                hint="install nvidia-cudnn-cu13, or nvidia-cudnn-cu12 for CUDA 12",
            )
        if self.cuda > driver // 1000:
            raise ToolchainError(
                f"cuDNN {self.version} is of CUDA {self.cuda}, the NVIDIA driver runs "
                f"CUDA {driver // 1000}.{driver % 1000 // 10}",
                hint="install a newer driver, or the cuDNN of the driver's CUDA",
            )
        try:
            self.handle = int(self.call("create"))
        except UnsupportedError as error:  # of this GPU
            raise ToolchainError(error.what, hint=error.hint) from None
        self._describe(Name.DEVICE_HANDLE, Held.HANDLE, [self.handle])

    def _prepare(self, api: Any, synchronize: Callable[[], None]) -> None:
        self._api, self._synchronize = api, synchronize
        self.dead: deque[int] = deque()
        self._plans: WeakValueDictionary[tuple[Conv, bytes], Plan] = WeakValueDictionary()
        number = int(api.version())
        self.version = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
        self.cuda = int(api.cudart()) // 1000

    def _describe(self, name: Name, held: Held, values: Sequence[Any]) -> None:
        self._properties = Descriptors(self)
        self._device = self._properties.make(Kind.DEVICE, (name, held, values))

    @staticmethod
    def described(api: Any, properties: bytes) -> Cudnn:
        """The library for a GPU that need not be there, by its properties as JSON: it plans, and
        can be asked for nothing."""
        made = Cudnn.__new__(Cudnn)
        made._prepare(api, lambda: None)
        made.handle = 0
        made._describe(Name.DEVICE_JSON, Held.CHAR, list(properties))
        return made

    def call(self, function: str, *args: Any) -> Any:
        """Call a function of the library. Its status as an error of weft, with its name."""
        try:
            return getattr(self._api, function)(*args)
        except CudnnError as error:
            raise failed(error) from None

    def sweep(self) -> None:
        """Destroy descriptors that nobody holds, when the device is done."""
        count = len(self.dead)
        if count:
            self._synchronize()
            for _ in range(count):  # what dies meanwhile has been used meanwhile
                self.call("destroy", self.dead.popleft())

    # -- engines ----------------------------------------------------------------------------------

    def algorithms(self, conv: Conv, most: int) -> list[Algorithm]:
        """At most so many, the one that the library thinks fastest first; none if it has none."""
        self.sweep()
        made: list[Algorithm] = []
        tried: Counter[int] = Counter()
        seen: set[_Engine] = set()
        try:
            held = Descriptors(self)
            graph = self._graph(held, conv)
        except UnsupportedError:
            return []
        for engine in self._ranked(held, graph, conv):
            if len(made) == most:
                break
            if engine in seen or tried[engine.index] == _OF_AN_ENGINE:
                continue
            seen.add(engine)
            found = self.checked(conv, engine.code)
            if found is not None:
                made.append(found)
                tried[engine.index] += 1
        return made

    def checked(self, conv: Conv, code: bytes) -> Algorithm | None:
        """The algorithm of this code, which another process has kept; None if it cannot do this."""
        try:
            workspace = self.plan(conv, code).workspace
        except UnsupportedError:
            return None
        fits = workspace <= _MOST_WORKSPACE
        return Algorithm(code, workspace, str(_Engine.of(code))) if fits else None

    def prepared(self, conv: Conv, algorithm: Algorithm, workspace: int) -> ConvCall:
        """The convolution by this algorithm, ready but for the addresses; `workspace`: where it
        is."""
        self.sweep()
        return ConvCall(self, conv, algorithm, workspace)

    def plan(self, conv: Conv, code: bytes) -> Plan:
        """The plan of an algorithm, one for all that hold it."""
        made = self._plans.get((conv, code))
        if made is None:
            made = self._plans[conv, code] = Plan(self, conv, _Engine.of(code))
        return made

    def room(self, algorithm: Algorithm) -> int:
        """As `library.Library` has it: powers of two, so that many share one."""
        return 1 << (algorithm.workspace - 1).bit_length() if algorithm.workspace else 0

    def _ranked(self, held: Descriptors, graph: int, conv: Conv) -> Iterator[_Engine]:
        """The engines that may be taken, by what the library expects of them."""
        for mode in _MODES:
            try:
                found = held.make(
                    Kind.HEURISTICS,
                    (Name.HEURISTICS_GRAPH, Held.DESCRIPTOR, [graph]),
                    (Name.HEURISTICS_MODE, Held.HEURISTICS_MODE, [mode]),
                    (Name.HEURISTICS_DEVICE, Held.DESCRIPTOR, [self._device]),
                )
            except UnsupportedError:  # by this heuristic: another may have engines
                continue
            wanted = (found, Name.HEURISTICS_RESULTS, Held.DESCRIPTOR)
            empty = [held.new(Kind.ENGINE_CONFIG) for _ in range(self.call("count", *wanted))]
            for config in self.call("get", *wanted, empty) if empty else ():
                wanted_one = (config, Name.CONFIG_ENGINE, Held.DESCRIPTOR)
                (engine,) = self.call("get", *wanted_one, [held.new(Kind.ENGINE)])
                if self._is_exact(engine, conv):
                    yield self._engine(held, engine, config)

    def _is_exact(self, engine: int, conv: Conv) -> bool:
        """Whether its bits are the same on every run, and as exact as `conv.mode` says."""

        def of(name: Name, held: Held) -> set[int]:
            return set(self.call("get", engine, name, held, [0] * _MOST_NOTES))

        notes = of(Name.ENGINE_NUMERICAL_NOTES, Held.NUMERICAL_NOTE)
        if notes & _REFUSED:
            return False
        if conv.dtype == "f32" and conv.mode == "ieee" and _TENSOR_CORE in notes:
            return False
        return _RUNTIME_COMPILATION not in of(Name.ENGINE_BEHAVIOR_NOTES, Held.BEHAVIOR_NOTE)

    def _engine(self, held: Descriptors, engine: int, config: int) -> _Engine:
        (index,) = self.call("get", engine, Name.ENGINE_INDEX, Held.INT64, [0])
        empty = [held.new(Kind.KNOB) for _ in range(_MOST_KNOBS)]  # it does not say how many
        knobs = []
        for knob in self.call("get", config, Name.CONFIG_KNOBS, Held.DESCRIPTOR, empty):
            (kind,) = self.call("get", knob, Name.KNOB_TYPE, Held.KNOB_TYPE, [0])
            (value,) = self.call("get", knob, Name.KNOB_VALUE, Held.INT64, [0])
            knobs.append((kind, value))
        return _Engine(index, tuple(sorted(knobs)))

    # -- graphs -----------------------------------------------------------------------------------

    def _graph(self, held: Descriptors, conv: Conv) -> int:
        """A graph of one operation."""
        kind, (alpha, beta, convolution, w, x, y) = _OPERATIONS[conv.kind]
        inner, outer = conv.groups * conv.inside, conv.groups * conv.outside
        walk = held.make(
            Kind.CONVOLUTION,
            (Name.COMPUTE_TYPE, Held.DATA_TYPE, [_FLOAT]),
            (Name.MODE, Held.CONVOLUTION_MODE, [_CROSS_CORRELATION]),
            (Name.DILATIONS, Held.INT64, conv.dilation),
            (Name.STRIDES, Held.INT64, conv.strides),
            (Name.PRE_PADDINGS, Held.INT64, conv.pre),
            (Name.POST_PADDINGS, Held.INT64, conv.post),
            (Name.SPATIAL_DIMS, Held.INT64, [len(conv.window)]),
        )
        tensors = {
            x: _tensor(held, _X, conv, conv.batch, inner, conv.large),
            w: _tensor(held, _W, conv, outer, conv.inside, conv.window),
            y: _tensor(held, _Y, conv, conv.batch, outer, conv.small),
        }
        operation = held.make(
            kind,
            (convolution, Held.DESCRIPTOR, [walk]),
            *((name, Held.DESCRIPTOR, [tensor]) for name, tensor in tensors.items()),
            (alpha, Held.FLOAT, [1]),
            (beta, Held.FLOAT, [0]),
        )
        return held.make(Kind.GRAPH, (Name.GRAPH_OPERATIONS, Held.DESCRIPTOR, [operation]))


def _tensor(
    held: Descriptors, uid: int, conv: Conv, first: int, channels: int, spatial: tuple[int, ...]
) -> int:
    """(first, channels, spatial...) with the channels last in memory."""
    shape, steps, step = (first, channels, *spatial), [1], channels
    for size in reversed(spatial):
        steps.insert(1, step)
        step *= size
    return held.make(
        Kind.TENSOR,
        (Name.DATA_TYPE, Held.DATA_TYPE, [_DTYPES[conv.dtype]]),
        (Name.DIMENSIONS, Held.INT64, shape),
        (Name.TENSOR_STRIDES, Held.INT64, (step, *steps)),
        (Name.UNIQUE_ID, Held.INT64, [uid]),
        (Name.ALIGNMENT, Held.INT64, [_ALIGNMENT]),
    )


class Plan:
    """An execution plan. workspace: bytes that it needs. UnsupportedError if an engine cannot, or
    is none that may be taken."""

    def __init__(self, library: Cudnn, conv: Conv, engine: _Engine) -> None:
        held = self._held = Descriptors(library)
        graph = library._graph(held, conv)
        one = held.make(
            Kind.ENGINE,
            (Name.ENGINE_GRAPH, Held.DESCRIPTOR, [graph]),
            (Name.ENGINE_INDEX, Held.INT64, [engine.index]),
            (Name.ENGINE_DEVICE, Held.DESCRIPTOR, [library._device]),
        )
        if not library._is_exact(one, conv):
            raise UnsupportedError(f"cuDNN's {engine} is not as exact as {conv.mode}")
        knobs = [
            held.make(
                Kind.KNOB,
                (Name.KNOB_TYPE, Held.KNOB_TYPE, [kind]),
                (Name.KNOB_VALUE, Held.INT64, [value]),
            )
            for kind, value in engine.knobs
        ]
        chosen = [(Name.CONFIG_KNOBS, Held.DESCRIPTOR, knobs)] if knobs else []
        config = held.make(
            Kind.ENGINE_CONFIG, (Name.CONFIG_ENGINE, Held.DESCRIPTOR, [one]), *chosen
        )
        self.number = held.make(
            Kind.PLAN,
            (Name.PLAN_CONFIG, Held.DESCRIPTOR, [config]),
            (Name.PLAN_DEVICE, Held.DESCRIPTOR, [library._device]),
        )
        wanted = self.number, Name.PLAN_WORKSPACE, Held.INT64
        (self.workspace,) = library.call("get", *wanted, [0])


class ConvCall(LibraryLaunch):
    """A plan with all but the addresses and the stream."""

    def __init__(self, library: Cudnn, conv: Conv, algorithm: Algorithm, workspace: int) -> None:
        self.name = f"cuDNN {library.version} {algorithm.label}"
        self._library, self._workspace = library, workspace
        self._plan = library.plan(conv, algorithm.code)
        self._uids = _WORDS[conv.kind]
        self._pack: tuple[tuple[int, ...], Descriptors, int] | None = None

    def __call__(self, words: Array, stream: int) -> None:
        """Ask for it. words: the addresses of the result and both operands."""
        library, addresses = self._library, tuple([int(word) for word in words[:3]])
        if self._pack is None or self._pack[0] != addresses:
            if self._pack is not None:  # which the library has read
                self._pack[1].destroy()
                self._pack = None
            held = Descriptors(library)
            number = held.make(
                Kind.VARIANT_PACK,
                (Name.PACK_IDS, Held.INT64, self._uids),
                (Name.PACK_POINTERS, Held.POINTER, addresses),
                (Name.PACK_WORKSPACE, Held.POINTER, [self._workspace]),
            )
            self._pack = addresses, held, number
        library.call("set_stream", library.handle, stream)
        library.call("execute", library.handle, self._plan.number, self._pack[2])


__all__ = ["ConvCall", "Cudnn", "Descriptors", "Plan", "installed", "load"]
