"""A fused graph as a plan for a GPU: launches and copies in order, on buffers that have places.

The plan is data: it names no device and no address, so it is made, read and tested without a GPU.
What it is carried out by is in `runtime/device`. Order is that of one stream: a launch begins when
those before it have ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

import numpy as np

from weft.codegen.cuda.source.kernel import CudaKernel, Launch
from weft.codegen.nests.nest import Nest
from weft.codegen.nests.rows import RowNest
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import MathMode
from weft.ir.graph import Operation
from weft.ir.types import TensorType
from weft.passes.memory.block import Moving
from weft.runtime.device.libraries.conv import Conv
from weft.runtime.device.libraries.gemm import Gemm

#: Bytes between the words in which one launch and the next tell of an index out of bounds.
FAULT_BYTES = 32

PlaceKind = Literal[
    "input", "result", "variable", "constant", "arena", "scratch", "fault", "moving", "cell"
]


@dataclass(frozen=True, slots=True)
class Place:
    """`nbytes` bytes, from `offset` bytes after the start of a buffer on: of an input, result,
    constant or `Moving` by its number, of a variable by its name. arena, scratch (shared by all
    ops) and faults are one buffer each, `which` is 0. cell: of a `DeviceAdd`, both elements and
    their sum.
    """

    kind: PlaceKind
    which: int | str
    offset: int
    nbytes: int

    def __str__(self) -> str:
        text = self.kind if self.kind in ("arena", "scratch", "fault") else f"{self.kind} "
        text += "" if self.kind in ("arena", "scratch", "fault") else str(self.which)
        return f"{text}+{self.offset}" if self.offset or self.kind == "arena" else text


PlanArg = Place | int
ProductKind = Literal["products", "convolutions"]


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """A launch with its arguments in places. fault: the number of its fault words, -1 if the kernel
    checks nothing. writes: the variables that it writes. nest: what a loop nest does, for people.
    """

    launch: Launch
    args: tuple[PlanArg, ...]
    op: Operation | None
    fault: int = -1
    writes: tuple[str, ...] = ()
    nest: Nest | RowNest | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """A library's way to do a product, as of `libraries.ways.Way`: launches for what the library
    cannot do, before and after its part."""

    call: Gemm | Conv
    args: tuple[Place, ...]
    after: tuple[PlannedLaunch, ...] = ()
    before: tuple[PlannedLaunch, ...] = ()
    given: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedProduct:
    """A product or convolution, with what follows it, by weft's `own` launches or by a route: the
    device's libraries choose (`device/libraries`)."""

    op: Operation
    own: tuple[PlannedLaunch, ...]
    routes: tuple[Route, ...]
    kind: ProductKind = "products"


@dataclass(frozen=True, slots=True)
class PlannedCopy:
    """A copy from one place to another of as many bytes, neither of which overlaps the other."""

    source: Place
    target: Place
    why: str


@dataclass(frozen=True, slots=True)
class CheckFaults:
    """The host waits and looks whether an op has failed: what comes next writes variables."""


@dataclass(frozen=True, slots=True)
class DeviceLoop:
    """`body` at most `limit` times (-1: no bound), as long as `decision` holds after `test`; the
    host reads it."""

    op: Operation
    limit: int
    test: tuple[DeviceNode, ...]
    decision: Place | None
    body: tuple[DeviceNode, ...]


@dataclass(frozen=True, slots=True)
class DeviceBranch:
    """`then` if `decision`, which the host reads, holds, else `orelse`."""

    op: Operation
    decision: Place
    then: tuple[DeviceNode, ...]
    orelse: tuple[DeviceNode, ...]


@dataclass(frozen=True, slots=True)
class DevicePush:
    """`result` becomes a stack with `value` on top of `stack`; an error where a loop has kept more
    than `limit` bytes so (-1: no limit)."""

    op: Operation
    stack: Place
    value: Place
    result: Place
    limit: int


@dataclass(frozen=True, slots=True)
class DevicePop:
    """`rest` becomes what is below the top of `stack`, `top` the top: zeros if there is none."""

    op: Operation
    stack: Place
    rest: Place
    top: Place


@dataclass(frozen=True, slots=True)
class DeviceAdd:
    """`result` becomes the stack of the sums of the elements of `a` and `b`, from the tops on. The
    elements are stacks themselves, `depth` deep; `launches` add up two of the innermost, of
    `nbytes` each, at the places "cell" 0 and 1, to that at 2."""

    op: Operation
    a: Place
    b: Place
    result: Place
    depth: int
    nbytes: int
    launches: tuple[PlannedLaunch, ...]


DeviceNode = (
    PlannedLaunch
    | PlannedProduct
    | PlannedCopy
    | CheckFaults
    | DeviceLoop
    | DeviceBranch
    | DevicePush
    | DevicePop
    | DeviceAdd
)


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """nodes: what runs. inputs, results: their types (None: a token). constants: arrays that stay
    on the device. variables: name -> (type, whether it is read). faults: of each launch that checks
    indices, by the number of its words, the ops that do. arena_bytes, scratch_bytes: of one step.
    moving: what follows the iterations of loops. math: how libraries may multiply f32. donated:
    the results that are in an input's memory, and which.
    """

    nodes: tuple[DeviceNode, ...]
    inputs: tuple[TensorType, ...]
    results: tuple[TensorType | None, ...]
    constants: tuple[np.ndarray[Any, Any], ...]
    variables: Mapping[str, tuple[TensorType, bool]]
    faults: tuple[tuple[Operation, ...], ...]
    arena_bytes: int
    scratch_bytes: int
    moving: tuple[tuple[Moving, Place, Place], ...] = ()
    math: MathMode = "ieee"
    donated: Mapping[int, int] = field(default_factory=dict)

    def launches(self) -> list[PlannedLaunch]:
        """The launches in order, those in loops and branches once; of products weft's own."""
        return [
            launch
            for leaf in _leaves(self.nodes)
            for launch in (leaf.own if isinstance(leaf, PlannedProduct) else (leaf,))
        ]

    def products(self) -> list[PlannedProduct]:
        """The products that a library may do, in order."""
        return [leaf for leaf in _leaves(self.nodes) if isinstance(leaf, PlannedProduct)]

    def kernels(self) -> list[CudaKernel]:
        """The kernels of `launches`, each once."""
        return _kernels(self.launches())

    def kernels_after(self) -> list[CudaKernel]:
        """Those that run only where a library does a product, each once."""
        return _kernels(
            [x for p in self.products() for r in p.routes for x in (*r.before, *r.after)]
        )


def _kernels(launches: Sequence[PlannedLaunch]) -> list[CudaKernel]:
    return list({n.launch.kernel.key: n.launch.kernel for n in launches}.values())


def inner(node: DeviceNode) -> Sequence[DeviceNode]:
    """What a node is made of: a loop, a branch, a product by weft's own kernels, a sum; of others
    nothing."""
    match node:
        case DeviceLoop():
            return (*node.test, *node.body)
        case DeviceBranch():
            return (*node.then, *node.orelse)
        case DeviceAdd():
            return node.launches
        case PlannedProduct():
            return node.own
        case _:
            return ()


def _leaves(nodes: Sequence[DeviceNode]) -> Iterator[PlannedLaunch | PlannedProduct]:
    for node in nodes:
        if isinstance(node, PlannedLaunch | PlannedProduct):
            yield node
        else:
            yield from _leaves(inner(node))
