"""What a compiled function tells about itself where it runs on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.frontend.calls.explain import heading, pass_table, product_lines
from weft.ir.locations import Locations
from weft.runtime.device.execution.step import DeviceStep

#: What each math mode means, for people.
_MODES = {"ieee": "ieee", "tf32": "tf32, where a library does them (weft's own kernels are ieee)"}


def explain_on_gpu(
    title: str,
    fields: Mapping[str, str],
    reasons: Sequence[str],
    location: Locations,
    executable: DeviceStep,
) -> str:
    """The whole report as text. Needs no GPU."""
    report, plan = executable.report, executable.plan
    lines = heading(title, fields, reasons, location)
    lines += ["", "device", f"  {executable.describe_device()}"]
    lines.append(f"  products of f32: {_MODES[plan.math]}")
    lines += ["", "passes", *pass_table(report.passes)]
    launches = len(plan.launches())
    took = f"{report.seconds * 1e3:.0f} ms"
    took = f"plan from disk, {took}" if report.plan_loaded else f"{took} to plan"
    lines += ["", f"one call makes {launches} launches of {len(plan.kernels())} kernels ({took})"]
    lines += _indented(executable.describe_program())
    products = product_lines(report.passes)
    lines += ["", "products", *products] if products else []
    head, *kernels = executable.describe_kernels()
    lines += ["", head, *(f"  {line}" for line in kernels)]
    lines += ["", "memory", *_indented(report.memory.describe())]
    lines.append(f"  on the device: {executable.nbytes:,} bytes for each call at a time")
    for result, given in plan.donated.items():
        name = executable.graph.arg_names[given]
        lines.append(f"  result {result} is where the donated argument '{name}' was")
    for name, (held, _) in plan.variables.items():
        lines.append(f"  variable '{name}' stays there: {held}, {held.nbytes:,} bytes")
    return "\n".join(lines)


def _indented(text: str) -> Iterator[str]:
    return (f"  {line}" for line in text.splitlines())
