"""`Session.view`: the page that shows a step - its passes, its report, and, of a traced run, the
timeline of threads and tasks."""

from __future__ import annotations

from weft.frontend.compile.view import RECORDED, kernels_of, passes_of
from weft.frontend.session.run import RunMetadata
from weft.frontend.viewer.document import Document
from weft.frontend.viewer.facts import Event, Memory, events_of, events_of_tasks
from weft.frontend.viewer.page import View
from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import caller_location
from weft.passes.manager import PassReport
from weft.runtime.native.executable import Executable
from weft.runtime.step import Step


def view_step(
    name: str,
    reports: list[PassReport],
    explained: str,
    step: Step,
    subtitle: str,
    metadata: RunMetadata | None,
) -> View:
    """The page. Of a native step it has the kernels with their code. InvalidArgumentError for the
    metadata of a run that was not traced."""
    if metadata is not None and not metadata.traced:
        raise InvalidArgumentError(
            "session.view: run_metadata is of a run without a trace",
            hint="run with options=wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)",
            location=caller_location(),
        )
    events: list[Event] = []
    recorded = ""
    if metadata is not None and metadata.timeline is not None:
        events = events_of_tasks(metadata.timeline)
    elif metadata is not None:
        events = events_of(metadata.events)
        recorded = RECORDED if metadata.executor == "native" else ""
    kernels = kernels_of(step) if isinstance(step, Executable) else ()
    memory = Memory.of(step.report.memory) if isinstance(step, Executable) else None
    passes = passes_of(reports)
    return View(Document(name, passes, subtitle, explained, kernels, memory, events, recorded))
