"""Errors that weft raises: what went wrong, where in the user's file, and what to do about it.

The classes named after TensorFlow 1's `tf.errors` keep its names; each also derives from the
built-in error that a NumPy or JAX user would catch (`ValueError`, `TypeError`, ...).
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.locations import Location


class WeftError(Exception):
    """Base of all errors raised by weft.

    `what` says what is wrong, `location` where in the user's program, `hint` what to do instead.
    """

    def __init__(
        self, what: str, *, hint: str | None = None, location: Sequence[Location] | Location = ()
    ) -> None:
        self.what = what
        self.hint = hint
        self.locations = (location,) if isinstance(location, Location) else tuple(location)
        super().__init__(self._render())

    def _render(self) -> str:
        lines = [self.what]
        if self.locations:
            lines.append(f"  at {self.locations[0].describe()}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def at(self, location: Sequence[Location]) -> WeftError:
        """Attach the user's location if there is none yet; returns self (for `raise e.at(loc)`)."""
        if not self.locations and location:
            self.locations = tuple(location)
            self.args = (self._render(),)
        return self


class InvalidArgumentError(WeftError, ValueError):
    """An argument has a value, shape or structure that the op does not accept."""


class TypeRuleError(WeftError, TypeError):
    """The operand types of an op do not fit its type rule."""


class ShapeError(InvalidArgumentError):
    """The operand shapes of an op do not fit together."""


class TracerError(WeftError, TypeError):
    """A symbolic tensor was used where a concrete value is needed, or outside its trace."""


class UnsupportedError(WeftError, NotImplementedError):
    """A combination that weft does not support (yet): it says so instead of falling back."""


class GradientError(WeftError, TypeError):
    """A gradient was asked for where none exists."""


class VerifyError(WeftError):
    """A graph breaks a rule of the IR; the message holds the graph with the fault at the op."""


class ParseError(WeftError, SyntaxError):
    """IR text that is not well formed; the message shows the line with a caret."""


class PassError(WeftError):
    """A pass name is unknown, or a pass broke the graph."""


class NotFoundError(WeftError, LookupError):
    """An op, pass, tensor or file of that name does not exist."""


class FailedPreconditionError(WeftError, RuntimeError):
    """The state needed is not there, for example an uninitialised variable."""


class ResourceExhaustedError(WeftError, MemoryError):
    """There is not enough memory for what the program asks for."""


class OutOfRangeError(WeftError, EOFError):
    """There is no further element: a queue is closed and empty, a file is at its end."""


class CancelledError(WeftError, RuntimeError):
    """The operation was cancelled before it was done, for example by closing its queue."""


class AbortedError(WeftError, RuntimeError):
    """The operation lost against a concurrent one, or its step was ended by another's error."""


class DeadlineExceededError(WeftError, TimeoutError):
    """The operation was not done within the time given."""


class UnavailableError(WeftError, ConnectionError):
    """A service or task does not answer; the same call may succeed later."""


class DataLossError(WeftError, ValueError):
    """Stored data is damaged: truncated, or its checksum does not fit."""


class AlreadyExistsError(WeftError, FileExistsError):
    """What was to be made exists already."""


class PermissionDeniedError(WeftError, PermissionError):
    """What was asked for needs leave that nobody has given."""


class UnknownError(WeftError, RuntimeError):
    """A Python function of the user's raised an error of a class that has no counterpart here."""


class ToolchainError(WeftError, RuntimeError):
    """CUDA kernels cannot be compiled here: a part is missing, or two parts do not fit."""


class InternalError(WeftError, RuntimeError):
    """A fault in weft itself, never in the user's program."""


def __dir__() -> list[str]:
    """The error classes: what users see as `wf.errors`."""
    kinds = {n for n, v in globals().items() if isinstance(v, type) and issubclass(v, WeftError)}
    return sorted({*kinds, *(n for n in globals() if n.startswith("__"))})


def suggest(name: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?` for the known names closest to `name`, or an empty string."""
    import difflib

    close = difflib.get_close_matches(name, known, n=3)
    return "; did you mean " + " or ".join(repr(c) for c in close) + "?" if close else ""
