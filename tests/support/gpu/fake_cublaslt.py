"""nvmath.bindings.cublasLt without a GPU, for tests: the functions that weft calls, on the memory
of `fake_driver.FakeDriver`.

It takes addresses as the library does, reads what lies there when it is called, and puts the work
into the stream. Products are NumPy's, over column-major matrices element by element as descriptors
say: a wrong leading dimension, stride or transpose shows. `FakeClock` is a driver with a clock.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from fake_driver import OK, FakeDriver, stream_at

Array = np.ndarray[Any, Any]
TYPES = {0: np.dtype(np.float32), 1: np.dtype(np.float64), 2: np.dtype(np.float16),
         14: np.dtype(ml_dtypes.bfloat16)}  # fmt: skip
#: compute type -> (elements, scale) that it takes, as in the table of `cublasLtMatmul`.
COMPUTE = {68: ({0, 2, 14}, 0), 69: ({0, 2, 14}, 0), 77: ({0}, 0), 70: ({1}, 1)}


#: Bytes of each attribute, as the real library demands.
SIZES = {
    "product": {3: 4, 4: 4, 7: 4, 8: 8, 26: 4}, "layout": {5: 4, 6: 8},
    "preference": {1: 8, 3: 4, 5: 4, 6: 4, 7: 4, 8: 4}, "config": dict.fromkeys(range(7), 4),
}  # fmt: skip


class cuBLASLtError(Exception):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(
            f"it went wrong (STATUS {status}). You can set CUBLASLT_LOG_LEVEL=5 environment"
        )


def _enum(name: str, **values: int) -> Any:
    return enum.IntEnum(name, values)


@dataclass
class Offer:
    """An algorithm. ms: what it takes. workspace: bytes. wrong: whether it computes nonsense;
    drops_nan: whether its relu makes 0 of NaN. status: of every matmul by it."""

    number: int
    ms: float = 0.01
    workspace: int = 0
    parts: int = 1
    scheme: int = 0
    wrong: bool = False
    drops_nan: bool = False
    status: int = 0


@dataclass
class _Product:
    compute: int
    scale: int
    held: dict[int, int] = field(default_factory=dict)


@dataclass
class _Layout:
    elements: int
    rows: int
    columns: int
    ld: int
    held: dict[int, int] = field(default_factory=dict)


class Refusing:
    """A fake library whose functions raise where a test says so."""

    failing: dict[str, int]  # function -> status

    def refusal(self, name: str, status: int) -> Exception:
        """What the function raises."""
        raise AssertionError(f"{name} has no status {status}")

    def __getattribute__(self, name: str) -> Any:
        failing = object.__getattribute__(self, "__dict__").get("failing", {})
        if name in failing:

            def fail(*_: object) -> None:
                raise self.refusal(name, failing[name])

            return fail
        return object.__getattribute__(self, name)


class FakeCublasLt(Refusing):
    """Stands for the module nvmath.bindings.cublasLt. obeys: whether the heuristic looks at the
    mask of reduction schemes."""

    cuBLASLtError = cuBLASLtError
    Epilogue = _enum("Epilogue", DEFAULT=1, RELU=2, BIAS=4, RELU_BIAS=6)
    ReductionScheme = _enum("ReductionScheme", NONE=0, INPLACE=1, COMPUTE_TYPE=2, OUTPUT_TYPE=4)
    MatmulDescAttribute = _enum(
        "MatmulDescAttribute", TRANSA=3, TRANSB=4, EPILOGUE=7, BIAS_POINTER=8, BIAS_DATA_TYPE=26
    )
    MatrixLayoutAttribute = _enum("MatrixLayoutAttribute", BATCH_COUNT=5, STRIDED_BATCH_OFFSET=6)
    MatmulPreferenceAttribute = _enum(
        "MatmulPreferenceAttribute", MAX_WORKSPACE_BYTES=1, REDUCTION_SCHEME_MASK=3,
        MIN_ALIGNMENT_A_BYTES=5, MIN_ALIGNMENT_B_BYTES=6, MIN_ALIGNMENT_C_BYTES=7,
        MIN_ALIGNMENT_D_BYTES=8,
    )  # fmt: skip
    MatmulAlgoConfigAttribute = _enum(
        "MatmulAlgoConfigAttribute", ID=0, TILE_ID=1, SPLITK_NUM=2, REDUCTION_SCHEME=3, STAGES_ID=6
    )
    matmul_heuristic_result_dtype = np.dtype(
        [("algo", [("data_", "<u8", (8,))]), ("workspace_size", "<u8"), ("state", "<i4"),
         ("waves_count", "<f4"), ("reserved", "<i4", (4,))]
    )  # fmt: skip

    def __init__(
        self, driver: FakeDriver, offers: list[Offer] | None = None, *, version: int = 130102,
        release: int = 13000, obeys: bool = True,
    ) -> None:  # fmt: skip
        self.driver, self.version, self.release, self.obeys = driver, version, release, obeys
        self.offers = [Offer(1)] if offers is None else offers
        self.held: dict[int, Any] = {}
        self._numbers = itertools.count(1000)
        self.calls: list[tuple[str, int]] = []  # (the product, number of the algorithm)
        self.computes: list[int] = []
        self.failing: dict[str, int] = {}  # function -> status
        self.asked = 0  # heuristics

    def refusal(self, name: str, status: int) -> Exception:
        return cuBLASLtError(status)

    def get_version(self) -> int:
        return self.version

    def get_cudart_version(self) -> int:
        return self.release

    def _new(self, thing: Any) -> int:
        handle = next(self._numbers)
        self.held[handle] = thing
        return handle

    def create(self) -> int:
        assert self.driver.current.context, "cublasLtCreate without a context"
        return self._new("handle")

    # -- descriptors ------------------------------------------------------------------------------

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        return self._new(_Product(compute, scale))

    def matrix_layout_create(self, elements: int, rows: int, columns: int, ld: int) -> int:
        return self._new(_Layout(elements, rows, columns, ld))

    def matmul_preference_create(self) -> int:
        return self._new({})

    def matmul_desc_destroy(self, handle: int) -> None:
        del self.held[handle]

    matrix_layout_destroy = matmul_preference_destroy = matmul_desc_destroy

    def _set(self, what: str, held: dict[int, int], attribute: int, at: int, size: int) -> None:
        if SIZES[what].get(attribute) != size:
            raise cuBLASLtError(7)
        held[attribute] = int.from_bytes(ctypes.string_at(at, size), "little", signed=True)

    def matmul_desc_set_attribute(self, handle: int, attribute: int, at: int, size: int) -> None:
        self._set("product", self.held[handle].held, attribute, at, size)

    def matrix_layout_set_attribute(self, handle: int, attribute: int, at: int, size: int) -> None:
        self._set("layout", self.held[handle].held, attribute, at, size)

    def matmul_preference_set_attribute(
        self, handle: int, attribute: int, at: int, size: int
    ) -> None:
        self._set("preference", self.held[handle], attribute, at, size)

    # -- algorithms -------------------------------------------------------------------------------

    def _checked(self, product: int, a: int, b: int, d: int) -> tuple[Any, ...]:
        p, *layouts = (self.held[h] for h in (product, a, b, d))
        elements, scale = COMPUTE[p.compute]
        if p.scale != scale or any(x.elements not in elements for x in layouts):
            raise cuBLASLtError(15)
        if len({x.elements for x in layouts}) != 1 or any(x.ld < x.rows for x in layouts):
            raise cuBLASLtError(7)
        (am, ak), (bk, bn) = (
            (x.rows, x.columns)[:: -1 if p.held.get(t) else 1]
            for x, t in zip(layouts, (3, 4), strict=False)
        )
        dm, dn = layouts[2].rows, layouts[2].columns
        if (am, ak, bn) != (dm, bk, dn) or len({x.held.get(5, 1) for x in layouts}) != 1:
            raise cuBLASLtError(7)
        return p, layouts

    def matmul_algo_get_heuristic(
        self, handle: int, product: int, a: int, b: int, c: int, d: int, preference: int,
        count: int, results: int, returned: int,
    ) -> None:  # fmt: skip
        assert self.held[handle] == "handle"
        assert c == d
        self._checked(product, a, b, d)
        self.asked += 1
        wanted = self.held[preference]
        assert all(wanted[k] in (1, 2, 4, 8, 16) for k in (5, 6, 7, 8)), "alignments are not known"
        found = [
            offer
            for offer in self.offers
            if offer.workspace <= wanted[1]
            and (not self.obeys or not offer.scheme or offer.scheme & wanted[3])
        ][:count]
        rows = np.zeros(count, self.matmul_heuristic_result_dtype)
        for row, offer in zip(rows, found, strict=False):
            row["algo"]["data_"][:2] = 0xB1A5, offer.number
            row["workspace_size"] = offer.workspace
        ctypes.memmove(results, rows.ctypes.data, rows.nbytes)
        ctypes.memmove(returned, np.int32(len(found)).tobytes(), 4)

    def _offer(self, algo: int) -> Offer:
        magic, number = np.frombuffer(ctypes.string_at(algo, 64), np.uint64)[:2]
        assert magic == 0xB1A5
        return next(offer for offer in self.offers if offer.number == number)

    def matmul_algo_check(
        self, handle: int, product: int, a: int, b: int, c: int, d: int, algo: int, result: int
    ) -> None:
        self._checked(product, a, b, d)
        row = np.zeros(1, self.matmul_heuristic_result_dtype)
        try:
            row["workspace_size"] = self._offer(algo).workspace
        except StopIteration:
            raise cuBLASLtError(15) from None
        ctypes.memmove(result, row.ctypes.data, row.nbytes)

    def matmul_algo_config_get_attribute(
        self, algo: int, attribute: int, at: int, size: int, written: int
    ) -> None:
        assert SIZES["config"][attribute] == size
        offer = self._offer(algo)
        value = {0: offer.number, 1: 20, 2: offer.parts, 3: offer.scheme, 6: 5}[attribute]
        ctypes.memmove(at, value.to_bytes(4, "little"), 4)

    # -- products ---------------------------------------------------------------------------------

    def matmul(
        self, handle: int, product: int, alpha: int, a: int, a_desc: int, b: int, b_desc: int,
        beta: int, c: int, c_desc: int, d: int, d_desc: int, algo: int, workspace: int,
        nbytes: int, stream: int,
    ) -> None:  # fmt: skip
        p, (x, y, z) = self._checked(product, a_desc, b_desc, d_desc)
        offer = self._offer(algo)
        if offer.status:
            raise cuBLASLtError(offer.status)
        assert (c, c_desc) == (d, d_desc)
        kind = ctypes.c_double if p.scale else ctypes.c_float
        assert [kind.from_address(at).value for at in (alpha, beta)] == [1, 0]
        dtype = TYPES[z.elements]
        if nbytes < offer.workspace or workspace % 16 or (offer.workspace and not workspace):
            raise cuBLASLtError(7)
        epilogue, bias = p.held.get(7, 1), p.held.get(8, 0)
        transposed = p.held.get(3, 0), p.held.get(4, 0)
        layouts = [(v.rows, v.columns, v.ld, v.held.get(6, 0)) for v in (x, y, z)]
        batch = z.held.get(5, 1)
        self.calls.append((f"{z.rows}x{z.columns} epilogue {epilogue}", offer.number))
        self.computes.append(p.compute)
        by = stream_at(stream).context

        def cells(at: int, which: int, k: int) -> Array:
            rows, columns, ld, stride = layouts[which]
            last = (columns - 1) * ld + rows
            start = at + k * stride * dtype.itemsize
            flat = self.driver.view(start, last * dtype.itemsize, by).view(dtype)
            steps = (dtype.itemsize, ld * dtype.itemsize)
            return np.lib.stride_tricks.as_strided(flat, (rows, columns), steps)

        def work() -> None:
            if isinstance(self.driver, FakeClock):
                self.driver.now += offer.ms
            if offer.workspace:
                self.driver.view(workspace, offer.workspace, by)[:] = 0xAB
            wide = np.float64 if p.scale else np.float32
            for k in range(batch):
                left, right = (cells(at, i, k).astype(wide) for i, at in enumerate((a, b)))
                if p.compute == 77:
                    left, right = tf32(left), tf32(right)
                left = left.T if transposed[0] else left
                right = right.T if transposed[1] else right
                with np.errstate(all="ignore"):
                    made = left @ right
                if epilogue & 4:
                    assert p.held[26] == z.elements
                    size = z.rows * dtype.itemsize
                    made = made + self.driver.view(bias, size, by).view(dtype).astype(wide)[:, None]
                if epilogue & 2:
                    pick = np.fmax if offer.drops_nan else np.maximum
                    made = pick(made, wide(0))
                cells(d, 2, k)[...] = (made + offer.wrong).astype(dtype)

        self.driver._put(stream_at(stream), work)


def tf32(x: Array) -> Array:
    """f32 rounded to the 10 bits of mantissa that tf32 has."""
    held = (x.astype(np.float32).view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return held.view(np.float32)


class FakeClock(FakeDriver):
    """A driver with a clock: each launch of a kernel takes 1 ms, 0.1 of a nest with no product, and
    of what looks for NaN."""

    now = 0.0

    def cuLaunchKernel(self, kernel: Any, *rest: Any) -> tuple[Any, ...]:
        small = kernel.name.endswith(("_each", "_transposed")) or "_nan_" in kernel.name
        took = 0.1 if small else 1.0

        def tick() -> None:
            self.now += took

        self._put(rest[7], tick)
        return super().cuLaunchKernel(kernel, *rest)

    def cuEventRecord(self, event: Any, stream: Any) -> tuple[Any, ...]:
        def note() -> None:
            event.at = self.now

        if stream.capture is None:
            self._put(stream, note)
        return super().cuEventRecord(event, stream)

    def cuEventElapsedTime(self, first: Any, last: Any) -> tuple[Any, ...]:
        return (OK, last.at - first.at)
