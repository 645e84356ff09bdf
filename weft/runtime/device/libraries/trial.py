"""The ways to do a product tried on the device: what each takes, and that they agree.

They run on memory of their own, filled with random numbers, so that no variable is written. Every
library's way is held against weft's own kernels, NaN included: what differs by more than rounding
is not taken, whatever its time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import ml_dtypes
import numpy as np

from weft.codegen.cuda.source.language import memory_dtype
from weft.ir.dataclass import dataclass
from weft.runtime.device.libraries.library import Call
from weft.runtime.device.planning.plan import Place, PlanArg, PlannedLaunch, PlannedProduct
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
