"""Choice of the algorithm for a product or convolution: weft's own kernels, cuBLASLt or cuDNN.

Each is timed on the device when a plan with such a product is first made ready there, and the
fastest is kept in weft's cache, so that later runs take the same, to the same bits. What cannot be
kept is not measured either: then it is the library's first algorithm whose results are right, which
is the same each time.

Trials run on memory of their own, filled with random numbers, so that no variable is written. Every
library's result is compared with weft's own kernels', NaN included: what differs by more than
rounding is not taken, whatever its time.

WEFT_GPU_LIBRARIES=0   weft's own kernels only
WEFT_GPU_LIBRARIES=1   a library that cannot be used is an error
(not set)              libraries where they are installed; `.explain` says what does what, and why
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from weft.codegen.cuda.source.kernel import memory_dtype
from weft.codegen.llvm.cache import CHOICE_SUFFIX, CachedRecord, KernelCache, kernel_cache
from weft.ir.dataclass import dataclass
from weft.ir.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    ToolchainError,
    UnsupportedError,
)
from weft.ir.graph import Operation
from weft.ir.process import ForkLock
from weft.runtime.device.gemm_conv import Conv, Gemm
from weft.runtime.device.libraries import cublaslt, cudnn
from weft.runtime.device.libraries.cublaslt import CublasLt
from weft.runtime.device.libraries.cudnn import Cudnn
from weft.runtime.device.libraries.library import (
    Algorithm,
    Call,
    Library,
    LibraryLaunch,
    Workspaces,
)
from weft.runtime.device.plan import Place, PlanArg, PlannedLaunch, PlannedProduct, ProductKind
from weft.runtime.device.protocol import Array, Device, LibraryCall, Memory, Prepared

#: So many bytes of a buffer are random, and repeated; so many at each end are compared.
BLOCK = 1 << 20
#: A measurement takes the device so many seconds, and is repeated.
LEAST_SECONDS, MOST_RUNS, TRIALS = 1e-3, 20, 3
#: Of numbers that differ by less than rounding, comparisons may differ: in so large a share.
_FEW_FLOATS, _FEW_OTHERS = 1e-3, 0.05
_FLOATS = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32), "f64": np.dtype(np.float64),
}  # fmt: skip
#: The largest relative rounding of an operand: 2^-11 of tf32, which has 10 bits of mantissa.
_ROUNDING = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53, "tf32": 2.0**-11}

#: Each way is run on numbers alone first: where rows are added up, a NaN is in all there is.
_WITH_NAN = (False, True)

Node = PlannedLaunch | LibraryCall


@dataclass(slots=True)
class _Buffer:
    """Bytes `begin` to `end` of a buffer of the plan, in memory of the trial."""

    kind: str
    which: int | str
    begin: int
    end: int
    dtype: str
    memory: Memory | None = None


class Trial:
    """The ways of `product` on memory of their own on `device`; at: where constants are.
    ResourceExhaustedError if there is no such memory."""

    def __init__(self, device: Device, product: PlannedProduct, at: Callable[[Place], int]) -> None:
        self._device, self._product, self._at = device, product, at
        self._buffers = _merged(_places(product))
        for held in self._buffers:
            held.memory = device.allocate(held.end - held.begin, "trying ways to do a product")
        self._own = self._prepared(product.own)
        self._expected = [self._made(self._own, nan) for nan in _WITH_NAN]

    def own_seconds(self) -> float:
        """What weft's own kernels take."""
        return self._seconds(self._own)

    def seconds(self, way: Sequence[Node], call: Call) -> float | None:
        """What a way takes; None if its results are not those of weft's own kernels."""
        prepared = self._prepared(way)
        return self._seconds(prepared) if self._right(prepared, call) else None

    def agrees(self, way: Sequence[Node], call: Call) -> bool:
        """Whether its results are those of weft's own kernels."""
        return self._right(self._prepared(way), call)

    def _right(self, prepared: Sequence[Prepared], call: Call) -> bool:
        allowed, buffers = tolerance(call), self._compared()
        for nan, expected in zip(_WITH_NAN, self._expected, strict=True):
            pairs = zip(buffers, expected, self._made(prepared, nan), strict=True)
            if not all(agree(held.dtype, a, b, allowed) for held, a, b in pairs):
                return False
        return True

    def _made(self, prepared: Sequence[Prepared], nan: bool) -> list[Array]:
        """What there is after it, of random numbers, with a NaN among them or not."""
        self._fill(nan)
        self._run(prepared)
        return self._read()

    # -- launches ---------------------------------------------------------------------------------

    def _prepared(self, way: Sequence[Node]) -> list[Prepared]:
        made = []
        for node in way:
            spans = [arg.nbytes if isinstance(arg, Place) else 0 for arg in node.args]
            if isinstance(node, PlannedLaunch):
                one = self._device.prepare(node.launch, spans)
            else:
                one = node.prepare()
            for k, arg in enumerate(node.args):
                one.words[k] = self._address(arg) if isinstance(arg, Place) else arg
            made.append(one)
        return made

    def _address(self, place: Place) -> int:
        if place.kind == "constant":
            return self._at(place)
        for held in self._buffers:
            if (held.kind, held.which) == (place.kind, place.which):
                if held.begin <= place.offset < held.end:
                    assert held.memory is not None
                    return held.memory.address + place.offset - held.begin
        raise AssertionError(place)

    def _run(self, prepared: Sequence[Prepared]) -> None:
        self._device.begin()
        for one in prepared:
            self._device.launch(one)

    def _seconds(self, prepared: Sequence[Prepared]) -> float:
        """The least of some measurements, as a recording, which is how steps run."""
        device = self._device
        device.synchronize()
        again: Callable[[], None] = partial(self._run, prepared)
        again = device.capture(again) or again
        device.begin()
        once = device.timed(again)
        runs = min(max(int(LEAST_SECONDS / max(once, 1e-7)), 1), MOST_RUNS)

        def many() -> None:
            for _ in range(runs):
                again()

        return min(device.timed(many) / runs for _ in range(TRIALS))

    # -- data -------------------------------------------------------------------------------------

    def _fill(self, nan: bool) -> None:
        device = self._device
        for number, held in enumerate(self._buffers):
            assert held.memory is not None
            size, start = held.end - held.begin, held.memory.address
            block = _block(held.dtype, min(size, BLOCK), number)
            device.upload(start, block)
            done = block.nbytes
            while 0 < done < size:
                device.copy(start + done, start, min(done, size - done))
                done += min(done, size - done)
        route = self._product.routes[0]
        written = [p for p in route.given if nan and p.kind != "constant"]
        one = np.array([np.nan], _FLOATS[route.call.dtype])
        for place in written[:1]:
            device.upload(self._address(place), one)
        device.synchronize()  # the arrays above may go

    def _compared(self) -> list[_Buffer]:
        return [held for held in self._buffers if held.kind not in ("scratch", "fault")]

    def _read(self) -> list[Array]:
        """Both ends of each buffer that is compared."""
        out = []
        for held in self._compared():
            assert held.memory is not None
            size = held.end - held.begin
            first = np.empty(min(size, BLOCK), np.uint8)
            last = np.empty(min(size - first.nbytes, BLOCK), np.uint8)
            self._device.download(first, held.memory.address)
            self._device.download(last, held.memory.address + size - last.nbytes)
            out.append(np.concatenate([first, last]))
        return out


def _places(product: PlannedProduct) -> Iterator[tuple[Place, str]]:
    """All places with what lies there, but for constants."""
    routes = product.routes
    launches = [*product.own, *(x for r in routes for x in (*r.before, *r.after))]
    pairs: list[tuple[PlanArg, str]] = [
        (arg, parameter.dtype)
        for one in launches
        for arg, parameter in zip(one.args, one.launch.kernel.parameters, strict=True)
    ]
    pairs += [(arg, route.call.dtype) for route in routes for arg in route.args]
    for arg, dtype in pairs:
        if isinstance(arg, Place) and arg.kind != "constant" and arg.nbytes:
            yield arg, dtype


def _merged(places: Iterator[tuple[Place, str]]) -> list[_Buffer]:
    """Places that overlap are one buffer; what the first one of them holds, all hold."""
    out: list[_Buffer] = []
    order = sorted(places, key=lambda p: (p[0].kind, str(p[0].which), p[0].offset, -p[0].nbytes))
    for place, dtype in order:
        last = out[-1] if out else None
        same = last is not None and (last.kind, last.which) == (place.kind, place.which)
        if last is not None and same and place.offset < last.end:
            last.end = max(last.end, place.offset + place.nbytes)
        else:
            end = place.offset + place.nbytes
            out.append(_Buffer(place.kind, place.which, place.offset, end, dtype))
    return out


def _block(dtype: str, nbytes: int, seed: int) -> Array:
    """Floats between -1 and 1; zeros of all else, which are indices that exist."""
    held = _FLOATS.get(dtype)
    if held is None:
        return np.zeros(nbytes, np.uint8)
    count = -(-nbytes // held.itemsize)
    made: Array = np.random.default_rng(seed).uniform(-1, 1, count).astype(held).view(np.uint8)
    return made[:nbytes].copy()


def tolerance(call: Call) -> float:
    """What two sums of k products of numbers between -1 and 1 may differ by: rounding of operands
    and of partial sums adds up as a random walk, with eight deviations to spare."""
    operands = _ROUNDING["tf32" if call.mode == "tf32" else call.dtype]
    sums = _ROUNDING["f64" if call.dtype == "f64" else "f32"]
    return 8 * (operands * math.sqrt(call.k) + sums * call.k)


def agree(dtype: str, a: Array, b: Array, allowed: float) -> bool:
    """Whether bytes are the same numbers, but for rounding."""
    held = _FLOATS.get(dtype)
    if held is None:
        kind = np.dtype(np.uint8) if dtype == "bool" else np.dtype(_INTEGERS[memory_dtype(dtype)])
        return float(np.mean(a.view(kind) != b.view(kind))) <= _FEW_OTHERS if a.size else True
    x, y = (v.view(held).astype(np.float64) for v in (a, b))
    if not np.array_equal(np.isnan(x), np.isnan(y)):
        return False
    with np.errstate(invalid="ignore"):
        near = np.abs(x - y) <= allowed * (1 + np.maximum(np.abs(x), np.abs(y)))
    bad = ~(near | (x == y) | np.isnan(x))
    return float(np.mean(bad)) <= _FEW_FLOATS if bad.size else True


_INTEGERS = {
    "u8": "u1", "i8": "i1", "u16": "u2", "i16": "i2", "u32": "u4", "i32": "i4", "u64": "u8",
    "i64": "i8",
}  # fmt: skip


LIBRARIES = "WEFT_GPU_LIBRARIES"
#: Algorithms that are tried, of each way.
MOST_ALGORITHMS = 6
#: Bytes of the workspace that algorithms may use: what NVIDIA recommends from sm_90 on, and before.
WORKSPACE, WORKSPACE_BEFORE_90 = 32 << 20, 4 << 20
OWN = "weft's own kernels"
ALL_OWN = f"{OWN} do all products"
#: Which library does what.
NAMES: dict[ProductKind, str] = {"products": "cuBLASLt", "convolutions": "cuDNN"}
_ONE = {"products": "a product", "convolutions": "a convolution"}
_log = logging.getLogger("weft.compile")


@dataclass(frozen=True, slots=True)
class Row:
    """A way that was tried: its time, or (`seconds` is None) why it was not taken."""

    label: str
    seconds: float | None
    note: str = ""

    def __str__(self) -> str:
        took = self.note if self.seconds is None else f"{self.seconds * 1e6:.1f} us"
        return f"{self.label}: {took}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice for a product. route: which of the product's, -1: none. algorithm: the library's.
    how: how it was chosen."""

    route: int
    algorithm: Algorithm | None
    how: str
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class ChosenCall:
    """A library's part of a product (`device.protocol.LibraryCall`)."""

    op: Operation
    args: tuple[PlanArg, ...]
    call: Gemm | Conv
    algorithm: Algorithm
    ready: Callable[[Gemm | Conv, Algorithm], LibraryLaunch]

    def prepare(self) -> Prepared:
        """A call whose words are the addresses of `args`."""
        made = Prepared(len(self.args))
        made.handle = self.ready(self.call, self.algorithm)
        return made


class OwnKernels:
    """The choice where weft's own kernels do every product, with the reason."""

    def __init__(self, why: str) -> None:
        self._why = why

    def choose(
        self, product: PlannedProduct, at: Callable[[Place], int]
    ) -> Sequence[PlannedLaunch | LibraryCall]:
        """The product's own launches."""
        return product.own

    def describe(self, products: Sequence[PlannedProduct]) -> list[str]:
        """That, in words, if there is a product."""
        return [f"libraries: {ALL_OWN}: {self._why}"] if products else []


class CudaLibraries:
    """cuBLASLt and cuDNN on `device`, loaded when the first product, or convolution, is made ready.
    driver: the release of CUDA that the driver runs.

    `choose` raises ToolchainError where WEFT_GPU_LIBRARIES=1 and the library cannot be used.
    """

    def __init__(self, device: Device, driver: Callable[[], int]) -> None:
        self._device, self._driver = device, driver
        self._lock = ForkLock()
        self._libraries: dict[ProductKind, Library[Any]] = {}
        self._missing: dict[ProductKind, ToolchainError] = {}
        self._workspaces = Workspaces(device)
        self._choices: dict[str, Choice] = {}

    def choose(
        self, product: PlannedProduct, at: Callable[[Place], int]
    ) -> Sequence[PlannedLaunch | LibraryCall]:
        """What does the product, as `device.protocol.Libraries` has it."""
        if not wanted():
            return product.own
        with self._lock:
            self._device.begin()
            if not self._loaded(product.kind) or not product.routes:
                return product.own
            key = _key(product)
            choice = self._choices.get(key)
            if choice is None:
                choice = self._choices[key] = self._decided(product, key, at)
                _log.info("product %s on %s: %s", product.routes[0].call.describe(),
                          self._device.name, _told(product, choice))  # fmt: skip
        return self._nodes(product, choice.route, choice.algorithm)

    def describe(self, products: Sequence[PlannedProduct]) -> list[str]:
        """Each product with what does it, and what else was tried; or why no library is used."""
        if products and not wanted():
            return [f"libraries: {ALL_OWN}: {LIBRARIES}=0"]
        lines = []
        for kind in NAMES:
            lines += self._described(kind, [one for one in products if one.kind == kind])
        return lines

    def _described(self, kind: ProductKind, products: Sequence[PlannedProduct]) -> list[str]:
        if not products:
            return []
        if kind in self._missing:
            return [f"libraries: {OWN} do all {kind}: {self._missing[kind].what}"]
        if kind not in self._libraries:
            return [f"libraries: looked for when a call first needs {_ONE[kind]}"]
        lines = [f"libraries: {NAMES[kind]} {self._libraries[kind].version}"]
        for number, product in enumerate((p for p in products if p.routes), 1):
            where = f" ({product.op.locations[0]})" if product.op.locations else ""
            lines.append(f"  {number}. {product.routes[0].call.describe()}{where}")
            choice = self._choices.get(_key(product))
            if choice is None:
                lines.append("     chosen when a call first needs it")
                continue
            lines.append(f"     {_told(product, choice)}")
            lines += [f"       {row}" for row in choice.rows]
        return lines

    # -- libraries --------------------------------------------------------------------------------

    def _loaded(self, kind: ProductKind) -> bool:
        """Whether there is a library for it."""
        if kind not in self._libraries and kind not in self._missing:
            try:
                found = self._libraries[kind] = self._load(kind)
                _log.info("%s %s on %s", NAMES[kind], found.version, self._device.name)
            except ToolchainError as error:
                # without its frames, which hold what the call was given
                self._missing[kind] = ToolchainError(error.what, hint=error.hint)
                _log.info("%s for %s on %s: %s", OWN, kind, self._device.name, error.what)
        missing = self._missing.get(kind)
        if missing is not None and os.environ.get(LIBRARIES) == "1":
            raise ToolchainError(f"{LIBRARIES}=1, but {missing.what}", hint=missing.hint)
        return missing is None

    def _load(self, kind: ProductKind) -> Library[Any]:
        if kind == "convolutions":
            return Cudnn(cudnn.load(), self._driver(), self._device.synchronize)
        size = WORKSPACE if self._device.cc >= (9, 0) else WORKSPACE_BEFORE_90
        return CublasLt(cublaslt.load(), self._driver(), size)

    def _ready(self, kind: ProductKind, call: Gemm | Conv, algorithm: Algorithm) -> LibraryLaunch:
        library = self._libraries[kind]
        with self._lock:
            try:
                memory = self._workspaces.of(library.room(algorithm), NAMES[kind])
            except ResourceExhaustedError as error:  # other kernels would have other bits
                hint = f"{LIBRARIES}=0: {OWN} need no workspace"
                raise ResourceExhaustedError(
                    error.what, hint=f"{error.hint}; {hint}" if error.hint else hint
                ) from None
            made = library.prepared(call, algorithm, 0 if memory is None else memory.address)
        made.memory = memory
        return made

    def _nodes(
        self, product: PlannedProduct, number: int, algorithm: Algorithm | None
    ) -> list[PlannedLaunch | LibraryCall]:
        if algorithm is None:
            return list(product.own)
        route, ready = product.routes[number], partial(self._ready, product.kind)
        call = ChosenCall(product.op, route.args, route.call, algorithm, ready)
        return [*route.before, call, *route.after]

    # -- choosing ---------------------------------------------------------------------------------

    def _decided(self, product: PlannedProduct, key: str, at: Callable[[Place], int]) -> Choice:
        library = self._libraries[product.kind]
        cache, text = kernel_cache(), self._text(product, library, key)
        kept = None if cache is None else self._kept(library, product, cache, text)
        if kept is not None:
            return kept
        found = [
            (number, algorithm)
            for number, route in enumerate(product.routes)
            for algorithm in library.algorithms(route.call, MOST_ALGORITHMS)
        ]
        if not found:
            return Choice(-1, None, "the library has no algorithm for it")
        try:
            if cache is None:
                return self._first(product, found, at)
            made = self._measured(product, found, at)
        except ResourceExhaustedError:  # a workspace may be too much, too
            return Choice(-1, None, "not tried: there is no memory for that")
        # another process may have been faster: both take what is kept
        kept = self._kept(library, product, cache, text)
        if kept is None:
            self._keep(cache, text, made)
            kept = self._kept(library, product, cache, text)
        if kept is not None:
            return kept
        why = "not kept: the cache cannot be written"
        for one, row in zip(found, made.rows[1:], strict=True):
            if row.seconds is not None:
                return Choice(*one, why, made.rows)
        return Choice(-1, None, why, made.rows)

    def _first(
        self,
        product: PlannedProduct,
        found: Sequence[tuple[int, Algorithm]],
        at: Callable[[Place], int],
    ) -> Choice:
        """The first whose results are those of weft's own kernels: no clock has a say."""
        trial, why = Trial(self._device, product, at), "there is no cache to keep the choice in"
        rows: list[Row] = []
        for number, algorithm in found:
            call, label = product.routes[number].call, _label(product, number, algorithm)
            try:
                if trial.agrees(self._nodes(product, number, algorithm), call):
                    return Choice(number, algorithm, f"not measured: {why}", tuple(rows))
                rows.append(self._refused(label, call))
            except UnsupportedError as error:
                rows.append(Row(label, None, error.what))
        return Choice(-1, None, "the library has none that agrees with them", tuple(rows))

    def _refused(self, label: str, call: Gemm | Conv) -> Row:
        note = f"its results are not those of {OWN}"
        # a relu may make 0 of NaN, which is no fault of anybody
        level = logging.INFO if "relu" in call.epilogue else logging.WARNING
        _log.log(level, "%s: %s on %s: %s", label, call.describe(), self._device.name, note)
        return Row(label, None, note)

    def _measured(
        self,
        product: PlannedProduct,
        found: Sequence[tuple[int, Algorithm]],
        at: Callable[[Place], int],
    ) -> Choice:
        trial = Trial(self._device, product, at)
        best, route, taken = trial.own_seconds(), -1, None
        rows = [Row(OWN, best)]
        for number, algorithm in found:
            call, label = product.routes[number].call, _label(product, number, algorithm)
            try:
                took = trial.seconds(self._nodes(product, number, algorithm), call)
            except UnsupportedError as error:
                rows.append(Row(label, None, error.what))
                continue
            rows.append(self._refused(label, call) if took is None else Row(label, took))
            if took is not None and took < best:
                best, route, taken = took, number, algorithm
        return Choice(route, taken, "measured", tuple(rows))

    # -- keeping ----------------------------------------------------------------------------------

    def _text(self, product: PlannedProduct, library: Library[Any], key: str) -> str:
        """All that a choice depends on."""
        name = f"{NAMES[product.kind]} {library.version} of CUDA {library.cuda}"
        return f"choice 1\n{self._device.description}\n{name}\n{key}"

    def _keep(self, cache: KernelCache, text: str, choice: Choice) -> None:
        code = "" if choice.algorithm is None else choice.algorithm.code.hex()
        rows = [[row.label, row.seconds, row.note] for row in choice.rows]
        fields = {"route": choice.route, "code": code, "rows": rows}
        name = f"product on {self._device.description}"
        cache.store_record(text, CHOICE_SUFFIX, CachedRecord(name, fields, b""))

    def _kept(
        self, library: Library[Any], product: PlannedProduct, cache: KernelCache, text: str
    ) -> Choice | None:
        def read(found: CachedRecord) -> tuple[int, bytes, tuple[Row, ...]]:
            route, code = int(found.fields["route"]), bytes.fromhex(found.fields["code"])
            if route >= len(product.routes):
                raise ValueError(f"there is no route {route}")
            return route, code, tuple(Row(*row) for row in found.fields["rows"])

        found = cache.load_record(text, CHOICE_SUFFIX, read)
        if found is None:
            return None
        route, code, rows = found
        how = "measured, and kept in the cache"
        if route < 0:
            return Choice(-1, None, how, rows)
        algorithm = library.checked(product.routes[route].call, code)
        return None if algorithm is None else Choice(route, algorithm, how, rows)


def wanted() -> bool:
    """Whether WEFT_GPU_LIBRARIES lets libraries do anything. InvalidArgumentError for what it
    cannot say."""
    given = os.environ.get(LIBRARIES, "")
    if given not in ("", "0", "1"):
        raise InvalidArgumentError(f"{LIBRARIES} is 0 or 1, not {given!r}")
    return given != "0"


def _key(product: PlannedProduct) -> str:
    """Equal keys, equal ways to do a product."""
    lines = [_line(one) for one in product.own]
    for route in product.routes:
        lines += [f"route {route.call.key}", *map(_line, (*route.before, *route.after))]
    return "\n".join(lines)


def _line(one: PlannedLaunch) -> str:
    sizes = [arg for arg in one.args if isinstance(arg, int)]
    launch = one.launch
    return f"{launch.kernel.key} {launch.blocks} {launch.block_threads} {sizes}"


def _label(product: PlannedProduct, number: int, algorithm: Algorithm) -> str:
    route, name = product.routes[number], f"{NAMES[product.kind]} {algorithm.label}"
    before, after = ([x.launch.kernel.name for x in some] for some in (route.before, route.after))
    return ", then ".join([", ".join(some) for some in (before, [name], after) if some])


def _told(product: PlannedProduct, choice: Choice) -> str:
    taken = choice.algorithm
    label = OWN if taken is None else _label(product, choice.route, taken)
    return f"{label} ({choice.how})"
