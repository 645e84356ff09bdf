"""`DeviceStep`: the interface of a step on one GPU; importing it loads no planner and no driver."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from weft.ir.graph import Graph
from weft.runtime.step import Step, StepSummary

if TYPE_CHECKING:
    from weft.passes.manager import PassReport
    from weft.runtime.device.array import DeviceValue
    from weft.runtime.device.execution.activation import KeptActivations
    from weft.runtime.device.plan import DevicePlan
    from weft.runtime.device.planning.stored_plan import DeviceReport
    from weft.runtime.device.protocol import Array, Device
    from weft.runtime.resources.attempts import CancelToken


#: What each math mode means, for people.
_MODES = {"ieee": "ieee", "tf32": "tf32, where a library does them (weft's own kernels are ieee)"}


class DeviceStep(Step):
    """A plan for a GPU (`execution/executable.py`). `run` gives arrays of the host."""

    kind: Literal["gpu"] = "gpu"
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
    def call(
        self,
        inputs: Sequence[Array | DeviceValue],
        keep: KeptActivations | None = None,
        cancel: CancelToken | None = None,
    ) -> list[DeviceValue | None]:
        """Run one step whose results stay on the device."""

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

    def passes(self) -> Sequence[PassReport]:
        return self.report.passes

    def summary(self) -> StepSummary:
        memory = self.report.memory
        return StepSummary(
            len(self.plan.launches()),
            arena_bytes=memory.arena_bytes,
            result_bytes=memory.result_bytes,
        )

    def feeds_on_gpus(self, count: int) -> list[list[str]]:
        return [[self.device().name] for _ in range(count)]

    def results_on_gpus(self) -> Sequence[tuple[int, str]]:
        gpu = self.device().name
        return [(i, gpu) for i, r in enumerate(self.plan.results) if r is not None]

    def explain(self) -> Iterator[str]:
        """As of `Step`. Needs no GPU."""
        from weft.runtime.native.explain import pass_table, product_lines  # it knows most passes

        report, plan = self.report, self.plan
        yield from ("device", f"  {self.describe_device()}")
        yield f"  products of f32: {_MODES[plan.math]}"
        yield from ("", "passes", *pass_table(report.passes))
        launches = len(plan.launches())
        took = f"{report.seconds * 1e3:.0f} ms"
        took = f"plan from disk, {took}" if report.plan_loaded else f"{took} to plan"
        kernels = len(plan.kernels())
        yield from ("", f"one call makes {launches} launches of {kernels} kernels ({took})")
        yield from _indented(self.describe_program())
        products = product_lines(report.passes)
        yield from ["", "products", *products] if products else []
        head, *rows = self.describe_kernels()
        yield from ("", head, *(f"  {line}" for line in rows))
        yield from ("", "memory", *_indented(report.memory.describe()))
        yield f"  on the device: {self.nbytes:,} bytes for each call at a time"
        for result, given in plan.donated.items():
            name = self.graph.arg_names[given]
            yield f"  result {result} is where the donated argument '{name}' was"
        for name, (held, _) in plan.variables.items():
            yield f"  variable '{name}' stays there: {held}, {held.nbytes:,} bytes"


def _indented(text: str) -> Iterator[str]:
    return (f"  {line}" for line in text.splitlines())
