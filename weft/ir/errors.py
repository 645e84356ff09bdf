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

    >>> try:
    ...     wf.nn.dropout(wf.ones([3]), rng=7)
    ... except wf.errors.WeftError as error:
    ...     print(error.what)
    ...     print(error.hint)
    wf.nn.dropout: rng must be a wf.random.Generator, got int
    a seed or a key goes into key=wf.random.key(seed)
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
    """An argument has a value, shape or structure that the op does not accept.

    >>> wf.nn.max_pool2d(wf.ones([1, 4, 4, 1]), 2, padding="FULL")
    Traceback (most recent call last):
        ...
    weft.ir.errors.InvalidArgumentError: wf.nn.max_pool2d: padding 'FULL' is unknown...
    """


class TypeRuleError(WeftError, TypeError):
    """The operand types of an op do not fit its type rule.

    >>> wf.bitwise_and(wf.ones([2]), 1)
    Traceback (most recent call last):
        ...
    weft.ir.errors.TypeRuleError: wf.bitwise_and takes integer or bool operands, got f32[2]...
    """


class ShapeError(InvalidArgumentError):
    """The operand shapes of an op do not fit together.

    >>> wf.ones([2]) + wf.ones([3])
    Traceback (most recent call last):
        ...
    weft.ir.errors.ShapeError: wf.add: shapes [2], [3] do not broadcast together...
    """


class BoundsError(InvalidArgumentError, IndexError):
    """A tensor has no such element or axis: an index, a mask or an axis does not fit its shape.

    >>> wf.asarray([1, 2])[2]
    Traceback (most recent call last):
        ...
    weft.ir.errors.BoundsError: index 2 is out of bounds for axis 0 of size 2...
    """


class TracerError(WeftError, TypeError):
    """A symbolic tensor was used where a concrete value is needed, or outside its trace.

    >>> wf.compile(lambda x: float(x) + 1)(2.0)
    Traceback (most recent call last):
        ...
    weft.ir.errors.TracerError: float(tensor) needs a value, but the tensor f64[] (made at ...
    """


class UnsupportedError(WeftError, NotImplementedError):
    """A combination that weft does not support (yet): it says so instead of falling back.

    >>> wf.compile(lambda: list(wf.data.Dataset.from_arrays(np.arange(3))))()
    Traceback (most recent call last):
        ...
    weft.ir.errors.UnsupportedError: a wf.data.Dataset was iterated while the function ...
    """


class GradientError(WeftError, TypeError):
    """A gradient was asked for where none exists.

    >>> wf.grad(lambda x: x)(wf.asarray(3))
    Traceback (most recent call last):
        ...
    weft.ir.errors.GradientError: grad: argument[0] is int64; only floating and complex ...
    """


class VerifyError(WeftError):
    """A graph breaks a rule of the IR; the message holds the graph with the fault at the op."""


class ParseError(WeftError, SyntaxError):
    """IR text that is not well formed; the message shows the line with a caret.

    >>> wf.Graph.from_text("graph @g(%x: f32[2]) {")
    Traceback (most recent call last):
        ...
    weft.ir.errors.ParseError: <text>:1:22: expected '->' and the result types, got '{'...
    """


class PassError(WeftError):
    """A pass name is unknown, or a pass broke the graph.

    >>> wf.compile(lambda x: x + 1).ir(1.0, after="no_such_pass")
    Traceback (most recent call last):
        ...
    weft.ir.errors.PassError: the pipeline has no pass 'no_such_pass'...
    """


class NotFoundError(WeftError, LookupError):
    """An op, pass, tensor or file of that name does not exist.

    >>> wf.data.Dataset.from_files("nowhere.csv", wf.data.read_lines)
    Traceback (most recent call last):
        ...
    weft.ir.errors.NotFoundError: nowhere.csv: no such file...
    """


class FailedPreconditionError(WeftError, RuntimeError):
    """The state needed is not there, for example an uninitialised variable.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     session.run(wf.Variable(1.0, name="w"))
    Traceback (most recent call last):
        ...
    weft.ir.errors.FailedPreconditionError: variable 'w' is not initialised...
    """


class ResourceExhaustedError(WeftError, MemoryError):
    """There is not enough memory for what the program asks for.

    >>> wf.ones([1 << 20, 1 << 30])
    Traceback (most recent call last):
        ...
    weft.ir.errors.ResourceExhaustedError: op 'broadcast_to': Unable to allocate 4.00 PiB for ...
    """


class OutOfRangeError(WeftError, EOFError):
    """There is no further element: a queue is closed and empty, a file is at its end.

    >>> queue = wf.tf1.FIFOQueue(2, [wf.int64], shapes=[[]], name="jobs")
    >>> queue.close()
    >>> queue.dequeue()
    Traceback (most recent call last):
        ...
    weft.ir.errors.OutOfRangeError: FIFOQueue 'jobs' is closed and has too few elements: ...
    """


class CancelledError(WeftError, RuntimeError):
    """The operation was cancelled before it was done, for example by closing its queue.

    >>> queue = wf.tf1.FIFOQueue(2, [wf.int64], shapes=[[]], name="jobs")
    >>> queue.close()
    >>> queue.enqueue([1])
    Traceback (most recent call last):
        ...
    weft.ir.errors.CancelledError: FIFOQueue 'jobs' is closed: enqueue was refused...
    """


class AbortedError(WeftError, RuntimeError):
    """The operation lost against a concurrent one, or its step was ended by another's error."""


class DeadlineExceededError(WeftError, TimeoutError):
    """The operation was not done within the time given.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     queue = wf.tf1.FIFOQueue(1, [wf.int64], shapes=[[]])
    ...     session.run(queue.dequeue(), options=wf.RunOptions(timeout=0.01))
    Traceback (most recent call last):
        ...
    weft.ir.errors.DeadlineExceededError: the step did not end in time; it waits for dequeue...
    """


class UnavailableError(WeftError, ConnectionError):
    """A service or task does not answer; the same call may succeed later.

    >>> wf.Session(cluster=wf.train.Cluster("tcp://127.0.0.1:1", connect_timeout=0.1))
    Traceback (most recent call last):
        ...
    weft.ir.errors.UnavailableError: a task at tcp://127.0.0.1:1 cannot be reached: ...
    """


class DataLossError(WeftError, ValueError):
    """Stored data is damaged: truncated, or its checksum does not fit.

    >>> wf.data.decode_example(b"no tf.train.Example")
    Traceback (most recent call last):
        ...
    weft.ir.errors.DataLossError: a tf.train.Example of 19 bytes: wire type 6 at byte 1...
    """


class AlreadyExistsError(WeftError, FileExistsError):
    """What was to be made exists already.

    >>> wf.register_op("sin", reference=np.sin, elementwise=True)
    Traceback (most recent call last):
        ...
    weft.ir.errors.AlreadyExistsError: there is an op 'sin' in weft itself...
    """


class PermissionDeniedError(WeftError, PermissionError):
    """What was asked for needs leave that nobody has given.

    >>> with wf.Graph().as_default() as graph:
    ...     text = wf.tf1.identity(wf.tf1.read_file("secret.txt"), name="text")
    >>> with wf.Session(graph=wf.Graph.from_text(graph.as_text())) as session:
    ...     session.run("text:0")
    Traceback (most recent call last):
        ...
    weft.ir.errors.PermissionDeniedError: op 'read_file' of the graph 'graph', which was not ...
    """


class UnknownError(WeftError, RuntimeError):
    """A Python function of the user's raised an error of a class that has no counterpart here.

    >>> wf.py_function(lambda: 1 // 0, [], wf.int64)
    Traceback (most recent call last):
        ...
    weft.ir.errors.UnknownError: wf.py_function: '<lambda>' raised ZeroDivisionError: integer ...
    """


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
