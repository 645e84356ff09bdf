"""Which way does a product on a device: weft's own kernels, or one of cuBLASLt's algorithms.

Each is timed on the device when a plan with such a product is first made ready there, and the
fastest is kept in weft's cache, so that later runs take the same, to the same bits. What cannot be
kept is not measured either: then it is the library's first algorithm whose results are right, which
is the same each time.

WEFT_GPU_LIBRARIES=0   weft's own kernels only
WEFT_GPU_LIBRARIES=1   a library that cannot be used is an error
(not set)              libraries where they are installed; `.explain` says what does what, and why
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.codegen.llvm.cache import CHOICE_SUFFIX, CachedRecord, KernelCache, kernel_cache
from weft.ir.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    ToolchainError,
    UnsupportedError,
)
from weft.ir.fork import ForkLock
from weft.ir.graph import Operation
from weft.runtime.device.libraries import cublaslt
from weft.runtime.device.libraries.cublaslt import Algorithm, CublasLt
from weft.runtime.device.libraries.gemm import Gemm
from weft.runtime.device.libraries.trial import Trial
from weft.runtime.device.planning.plan import Place, PlanArg, PlannedLaunch, PlannedProduct
from weft.runtime.device.protocol import Device, LibraryCall, Memory, Prepared

LIBRARIES = "WEFT_GPU_LIBRARIES"
#: Algorithms that are tried, of each way.
MOST_ALGORITHMS = 6
#: Bytes of the workspace that algorithms may use: what NVIDIA recommends from sm_90 on, and before.
WORKSPACE, WORKSPACE_BEFORE_90 = 32 << 20, 4 << 20
OWN = "weft's own kernels"
ALL_OWN = f"{OWN} do all products"
_log = logging.getLogger("weft.compile")


@dataclass(frozen=True, slots=True)
class Row:
    """A way that was tried: what it took, or (`seconds` is None) why it was not taken."""

    label: str
    seconds: float | None
    note: str = ""

    def __str__(self) -> str:
        took = self.note if self.seconds is None else f"{self.seconds * 1e6:.1f} us"
        return f"{self.label}: {took}"


@dataclass(frozen=True, slots=True)
class Choice:
    """route: which of the product's, -1: none. algorithm: the library's. how: how it was chosen."""

    route: int
    algorithm: Algorithm | None
    how: str
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class ChosenCall:
    """A library's part of a product (`device.protocol.LibraryCall`)."""

    op: Operation
    args: tuple[PlanArg, ...]
    gemm: Gemm
    algorithm: Algorithm
    ready: Callable[[Gemm, Algorithm], Any]

    def prepare(self) -> Prepared:
        """A call whose words are the addresses of D, A, B and the bias."""
        made = Prepared(4)
        made.handle = self.ready(self.gemm, self.algorithm)
        return made


class OwnKernels:
    """weft's own kernels do every product; why."""

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
    """cuBLASLt on `device`, loaded when the first product is made ready. driver: the release of
    CUDA that the driver runs.

    `choose` raises ToolchainError where WEFT_GPU_LIBRARIES=1 and the library cannot be used.
    """

    def __init__(self, device: Device, driver: Callable[[], int]) -> None:
        self._device, self._driver = device, driver
        self._lock = ForkLock()
        self._library: CublasLt | None = None
        self._missing: ToolchainError | None = None
        self._workspace: Memory | None = None
        self._choices: dict[str, Choice] = {}

    def choose(
        self, product: PlannedProduct, at: Callable[[Place], int]
    ) -> Sequence[PlannedLaunch | LibraryCall]:
        """What does the product, as `device.protocol.Libraries` has it."""
        if not wanted():
            return product.own
        with self._lock:
            self._device.begin()
            library = self._loaded()
            if library is None or not product.routes:
                return product.own
            key = _key(product)
            choice = self._choices.get(key)
            if choice is None:
                choice = self._choices[key] = self._decided(library, product, key, at)
                _log.info("product %s on %s: %s", product.routes[0].gemm.describe(),
                          self._device.name, _told(product, choice))  # fmt: skip
        return self._nodes(product, choice.route, choice.algorithm)

    def describe(self, products: Sequence[PlannedProduct]) -> list[str]:
        """Each product with what does it, and what else was tried; or why no library is used."""
        if not products:
            return []
        if not wanted():
            return [f"libraries: {ALL_OWN}: {LIBRARIES}=0"]
        if self._missing is not None:
            return [f"libraries: {ALL_OWN}: {self._missing.what}"]
        if self._library is None:
            return ["libraries: looked for when a call first needs a product"]
        lines = [f"libraries: cuBLASLt {self._library.version}"]
        for number, product in enumerate((p for p in products if p.routes), 1):
            where = f" ({product.op.locations[0]})" if product.op.locations else ""
            lines.append(f"  {number}. {product.routes[0].gemm.describe()}{where}")
            choice = self._choices.get(_key(product))
            if choice is None:
                lines.append("     chosen when a call first needs it")
                continue
            lines.append(f"     {_told(product, choice)}")
            lines += [f"       {row}" for row in choice.rows]
        return lines

    # -- the library ------------------------------------------------------------------------------

    def _loaded(self) -> CublasLt | None:
        """The library, None if it cannot be used."""
        if self._library is None and self._missing is None:
            try:
                size = WORKSPACE if self._device.cc >= (9, 0) else WORKSPACE_BEFORE_90
                self._library = CublasLt(cublaslt.load(), self._driver(), size)
                _log.info("cuBLASLt %s on %s", self._library.version, self._device.name)
            except ToolchainError as error:
                self._missing = error
                _log.info("%s for products on %s: %s", OWN, self._device.name, error.what)
        if self._missing is not None and os.environ.get(LIBRARIES) == "1":
            raise ToolchainError(
                f"{LIBRARIES}=1, but {self._missing.what}", hint=self._missing.hint
            )
        return self._library

    def _ready(self, gemm: Gemm, algorithm: Algorithm) -> Any:
        assert self._library is not None
        with self._lock:
            if algorithm.workspace and self._workspace is None:
                # one for all: launches of a device follow each other on one stream
                size = self._library.workspace
                self._workspace = self._device.allocate(size, "cuBLASLt's workspace")
        address = self._workspace.address if algorithm.workspace and self._workspace else 0
        return self._library.prepared(gemm, algorithm, address)

    def _nodes(
        self, product: PlannedProduct, number: int, algorithm: Algorithm | None
    ) -> list[PlannedLaunch | LibraryCall]:
        if algorithm is None:
            return list(product.own)
        route = product.routes[number]
        call = ChosenCall(product.op, route.args, route.gemm, algorithm, self._ready)
        return [call, *route.after]

    # -- choosing ---------------------------------------------------------------------------------

    def _decided(
        self, library: CublasLt, product: PlannedProduct, key: str, at: Callable[[Place], int]
    ) -> Choice:
        cache, text = kernel_cache(), self._text(library, key)
        kept = None if cache is None else self._kept(library, product, cache, text)
        if kept is not None:
            return kept
        found = [
            (number, algorithm)
            for number, route in enumerate(product.routes)
            for algorithm in library.algorithms(route.gemm, MOST_ALGORITHMS)
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
            gemm, label = product.routes[number].gemm, _label(product, number, algorithm)
            try:
                if trial.agrees(self._nodes(product, number, algorithm), gemm):
                    return Choice(number, algorithm, f"not measured: {why}", tuple(rows))
                rows.append(self._refused(label, gemm))
            except UnsupportedError as error:
                rows.append(Row(label, None, error.what))
        return Choice(-1, None, "the library has none that agrees with them", tuple(rows))

    def _refused(self, label: str, gemm: Gemm) -> Row:
        note = f"its results are not those of {OWN}"
        # a relu may make 0 of NaN, which is no fault of anybody
        level = logging.INFO if "relu" in gemm.epilogue else logging.WARNING
        _log.log(level, "%s: %s on %s: %s", label, gemm.describe(), self._device.name, note)
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
            gemm, label = product.routes[number].gemm, _label(product, number, algorithm)
            try:
                took = trial.seconds(self._nodes(product, number, algorithm), gemm)
            except UnsupportedError as error:
                rows.append(Row(label, None, error.what))
                continue
            rows.append(self._refused(label, gemm) if took is None else Row(label, took))
            if took is not None and took < best:
                best, route, taken = took, number, algorithm
        return Choice(route, taken, "measured", tuple(rows))

    # -- keeping ----------------------------------------------------------------------------------

    def _text(self, library: CublasLt, key: str) -> str:
        """All that a choice depends on."""
        return f"choice 1\n{self._device.description}\ncuBLASLt {library.version}\n{key}"

    def _keep(self, cache: KernelCache, text: str, choice: Choice) -> None:
        code = "" if choice.algorithm is None else choice.algorithm.code.hex()
        rows = [[row.label, row.seconds, row.note] for row in choice.rows]
        fields = {"route": choice.route, "code": code, "rows": rows}
        name = f"product on {self._device.description}"
        cache.store_record(text, CHOICE_SUFFIX, CachedRecord(name, fields, b""))

    def _kept(
        self, library: CublasLt, product: PlannedProduct, cache: KernelCache, text: str
    ) -> Choice | None:
        found = cache.load_record(text, CHOICE_SUFFIX)
        if found is None:
            return None
        rows = tuple(Row(*row) for row in found.fields["rows"])
        route, how = int(found.fields["route"]), "measured, and kept in the cache"
        if route < 0:
            return Choice(-1, None, how, rows)
        gemm = product.routes[route].gemm
        algorithm = library.checked(gemm, bytes.fromhex(found.fields["code"]))
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
        lines += [f"route {route.gemm.key}", *map(_line, route.after)]
    return "\n".join(lines)


def _line(one: PlannedLaunch) -> str:
    sizes = [arg for arg in one.args if isinstance(arg, int)]
    launch = one.launch
    return f"{launch.kernel.key} {launch.blocks} {launch.block_threads} {sizes}"


def _label(product: PlannedProduct, number: int, algorithm: Algorithm) -> str:
    after = [one.launch.kernel.name for one in product.routes[number].after]
    return f"cuBLASLt {algorithm.label}" + (f", then {', '.join(after)}" if after else "")


def _told(product: PlannedProduct, choice: Choice) -> str:
    taken = choice.algorithm
    label = OWN if taken is None else _label(product, choice.route, taken)
    return f"{label} ({choice.how})"
