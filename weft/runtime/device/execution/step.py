"""`DeviceStep`: the interface of a step on one device, and `StepOnDevices` of one on several.

Those who hold a step need not load what made it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.ir.dataclass import dataclass
from weft.ir.device import short
from weft.ir.graph import Graph, Operation

if TYPE_CHECKING:
    from weft.passes.partition.partition import Edge
    from weft.passes.placement import Placement
    from weft.runtime.dataflow.executor import DataflowStep
    from weft.runtime.dataflow.regions import LazyRegion
    from weft.runtime.dataflow.trace import TraceRecorder
    from weft.runtime.device.array import DeviceValue
    from weft.runtime.device.execution.frame import KeptFrames
    from weft.runtime.device.plan import DevicePlan
    from weft.runtime.device.planning.stored_plan import DeviceReport
    from weft.runtime.device.protocol import Array, Device
    from weft.runtime.native.executable import Executable
    from weft.runtime.resources.cancel import CancelToken


class DeviceStep(ABC):
    """A plan for a device, which is called as an `Executable` is (`execution/executable.py`)."""

    name: str
    plan: DevicePlan

    @property
    @abstractmethod
    def graph(self) -> Graph:
        """The fused graph."""

    @property
    @abstractmethod
    def report(self) -> DeviceReport:
        """What planning did."""

    @abstractmethod
    def __call__(
        self, inputs: Sequence[Array | DeviceValue], cancel: CancelToken | None = None
    ) -> list[Any]:
        """Run one step. cancel: ends it where the host leads a loop or branch."""

    @abstractmethod
    def call(
        self,
        inputs: Sequence[Array | DeviceValue],
        keep: KeptFrames | None = None,
        cancel: CancelToken | None = None,
    ) -> list[DeviceValue | None]:
        """Run one step whose results stay on the device."""

    @abstractmethod
    def run_traced(
        self, inputs: list[Array], recorder: TraceRecorder, cancel: CancelToken | None = None
    ) -> list[Any]:
        """Run one step, and note what took how long."""

    @property
    def is_filled(self) -> bool:
        """Whether the plan is one for many sizes, filled in for some."""
        return False

    @abstractmethod
    def device(self) -> Device:
        """The device; errors of finding it."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the device that one call at a time takes, beside variables and constants."""

    @abstractmethod
    def describe_device(self) -> str:
        """The device, or why there is none, in words."""

    @abstractmethod
    def describe_program(self) -> str:
        """The launches in order, for people."""

    @abstractmethod
    def describe_kernels(self) -> list[str]:
        """What each kernel takes of the device, of those that are compiled already."""

    @abstractmethod
    def asm(self) -> str:
        """PTX of every kernel, each once, for the device; for sm_90 if there is none here."""

    def native_step(self) -> None:
        """There is no native call path to a device."""
        return


@dataclass(frozen=True, slots=True)
class DevicePart:
    """What one device does of a step. receivers: its ops `recv`, by their keys."""

    device: str
    graph: Graph
    step: Executable | LazyRegion | DataflowStep
    feeds: tuple[int, ...]
    fetches: tuple[int, ...]
    receivers: Mapping[int, Operation]

    @property
    def name(self) -> str:
        """`/gpu:0`."""
        return short(self.device)


class StepOnDevices(ABC):
    """A step over several devices of this process, which is called as a `DataflowStep` is
    (`runtime/cluster/multi_device.py`). edges: what goes from one part to another; placement: why
    each op is where it is."""

    name: str
    parts: Sequence[DevicePart]
    edges: Sequence[Edge]
    placement: Placement | None

    @abstractmethod
    def __call__(
        self,
        inputs: list[Array],
        *,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        trace: TraceRecorder | None = None,
    ) -> list[Any]:
        """Run one step."""
