"""`RunOptions`: what one `Session.run` is asked for beside its values."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from weft.ir.errors import InvalidArgumentError, TypeRuleError
from weft.ir.source import caller_location


@dataclass(frozen=True, slots=True, init=False)
class RunOptions:
    """timeout_in_ms: after so many milliseconds a step that waits (for a queue) or goes round a
    loop of the dataflow executor ends with DeadlineExceededError; 0: no limit. A native plan is not
    interrupted.

    Raises TypeRuleError for what is no number, InvalidArgumentError for a number that is no time.
    """

    timeout_in_ms: float

    def __init__(self, timeout_in_ms: float = 0) -> None:
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
        object.__setattr__(self, "timeout_in_ms", float(timeout_in_ms))

    @property
    def seconds(self) -> float | None:
        """The limit; None: there is none."""
        return self.timeout_in_ms / 1e3 if self.timeout_in_ms else None
