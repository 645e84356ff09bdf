"""`RunOptions`: what one `Session.run` is asked for beside its values."""

from __future__ import annotations

from numbers import Real
from typing import ClassVar

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, TypeRuleError
from weft.ir.locations import caller_location


@dataclass(frozen=True, slots=True, init=False)
class RunOptions:
    """timeout_in_ms: after so many milliseconds a step that waits (for a queue) or goes round a
    loop, a native one or one that the host leads on a GPU (docs/gpu.md), ends with
    DeadlineExceededError; 0: no limit. A kernel is not interrupted. trace_level: from
    SOFTWARE_TRACE on (TensorFlow 1's levels are all alike here), `run_metadata` gets an event for
    each kernel and node.

    Raises TypeRuleError for what is no number, InvalidArgumentError for a number that is no time or
    no level.
    """

    NO_TRACE: ClassVar[int] = 0
    SOFTWARE_TRACE: ClassVar[int] = 1
    HARDWARE_TRACE: ClassVar[int] = 2
    FULL_TRACE: ClassVar[int] = 3

    timeout_in_ms: float
    trace_level: int

    def __init__(self, timeout_in_ms: float = 0, trace_level: int = 0) -> None:
        # not a generated one: errors name the user's line, and generated code looks like a user's
        given: object = timeout_in_ms
        if isinstance(given, bool) or not isinstance(given, Real):
            raise TypeRuleError(
                f"wf.RunOptions: timeout_in_ms must be a number, got {timeout_in_ms!r:.60}",
                hint="give milliseconds; 0 is no limit",
                location=caller_location(),
            )
        if not timeout_in_ms >= 0:
            raise InvalidArgumentError(
                f"wf.RunOptions: timeout_in_ms={timeout_in_ms!r} is no time",
                hint="give milliseconds; 0 is no limit",
                location=caller_location(),
            )
        if isinstance(trace_level, bool) or trace_level not in (0, 1, 2, 3):
            raise InvalidArgumentError(
                f"wf.RunOptions: trace_level={trace_level!r:.60} is no level",
                hint="it is RunOptions.NO_TRACE or RunOptions.FULL_TRACE",
                location=caller_location(),
            )
        object.__setattr__(self, "timeout_in_ms", float(timeout_in_ms))
        object.__setattr__(self, "trace_level", trace_level)

    @property
    def seconds(self) -> float | None:
        """The limit; None: there is none."""
        return self.timeout_in_ms / 1e3 if self.timeout_in_ms else None

    @property
    def traces(self) -> bool:
        """Whether events are wanted."""
        return self.trace_level > 0


def check_options(options: object) -> None:
    """TypeRuleError for what is neither None nor a `RunOptions`."""
    if options is not None and not isinstance(options, RunOptions):
        raise TypeRuleError(
            f"Session.run: options must be wf.RunOptions, got a {type(options).__name__}",
            location=caller_location(),
        )
