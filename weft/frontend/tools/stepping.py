"""Stepping through a recorded step: the reference interpreter stops at an op, a line, an iteration,
an error, shows what the op was given and gave, and goes on as the user says."""

from __future__ import annotations

import cmd
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, NotFoundError, WeftError, suggest
from weft.ir.graph import Graph, Operation, Value
from weft.ir.interpreter.evaluate import Path, Watch, iterations_of
from weft.ir.text.printer import value_names
from weft.runtime.record.replay import Replayed, run_again
from weft.runtime.record.step_record import StepRecord

#: Of a value so many elements are shown at each end.
_EDGE = 3
STOPS = (
    "OP, an op's name; OP:N, in iteration N of the loop around it (OP:N,M: of several loops, the "
    "outermost first); FILE:LINE and FILE:LINE:N, the user's line; #K, the K-th op; error, the op "
    "that raises"
)


@dataclass(frozen=True, slots=True)
class Stop:
    """Where to stop. name: of the op, "" for any; file, line: of the user; iterations: of the loops
    around it; number: of the op in the order of the run; error: at the op that raises."""

    text: str
    name: str = ""
    file: str = ""
    line: int = 0
    iterations: tuple[int, ...] | None = None
    number: int | None = None
    error: bool = False

    @staticmethod
    def of(text: str) -> Stop:
        """What `STOPS` says. InvalidArgumentError for anything else."""
        if text == "error":
            return Stop(text, error=True)
        if text.startswith("#") and text[1:].isdecimal():
            return Stop(text, number=int(text[1:]))
        name, *rest = text.rsplit(":", 2) if ".py:" in text else text.rsplit(":", 1)
        try:
            if name.endswith(".py") and rest:
                inside = _numbers(rest[1]) if len(rest) > 1 else None
                return Stop(text, file=name, line=int(rest[0]), iterations=inside)
            if name.isidentifier() and len(rest) < 2:
                return Stop(text, name=name, iterations=_numbers(rest[0]) if rest else None)
        except ValueError:
            pass
        raise InvalidArgumentError(f"'{text}' is no place to stop at", hint=STOPS)

    def fits(self, op: Operation, iterations: tuple[int, ...], number: int) -> bool:
        """Whether a run of an op is there."""
        if self.error:
            return False
        if self.number is not None:
            return number == self.number
        if self.iterations is not None and iterations != self.iterations:
            return False
        if self.file:
            places = op.locations[:1]
            return any(
                p.line == self.line and f"/{p.file}".endswith(f"/{self.file}") for p in places
            )
        return op.name == self.name


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(","))


@dataclass(frozen=True, slots=True)
class Moment:
    """An op that was carried out, or has raised: what it was given and gave. number: in the order
    of the run."""

    op: Operation
    number: int
    iterations: tuple[int, ...]
    operands: Sequence[Any]
    results: Sequence[Any]
    error: WeftError | None = None

    def lines(self, names: Mapping[Value, str]) -> list[str]:
        """For people: the op, where it is, its values."""
        op = self.op
        inside = f", iteration {', '.join(map(str, self.iterations))}" if self.iterations else ""
        on = f", on {op.device}" if op.device else ""
        found = [f"#{self.number} {op.name}{inside}{on}"]
        if op.locations:
            found.append(f"  at {op.locations[0].describe()}")
        for word, values, made in (
            ("given", op.operands, self.operands),
            ("gave", op.results, self.results),
        ):
            for value, x in zip(values, made, strict=False):
                found.append(f"  {word} {names.get(value, '%?')}: {value.type} = {shown(x)}")
        if self.error is not None:
            found += [f"  raised {type(self.error).__name__}: {self.error.what}"]
        return found


def shown(x: Any) -> str:
    """A value in one line."""
    if not isinstance(x, np.ndarray):
        return str(getattr(x, "name", x))
    text = np.array2string(x, threshold=2 * _EDGE, edgeitems=_EDGE, separator=" ")
    return " ".join(text.split())


#: Told of a moment; says where to stop next, None to run to the end.
Ask = Callable[[Moment], Stop | None]


class Quit(BaseException):
    """Ends the run: the user has seen enough."""


class Stepper(Watch):
    """Stops a run. reached: whether it has stopped at all. names: of ops that ran, for errors."""

    def __init__(self, stop: Stop | None, ask: Ask) -> None:
        self.stop, self.ask = stop, ask
        self.reached, self.names = False, dict[str, None]()
        self._number = 0
        self._failed = False

    def done(
        self, op: Operation, around: Path, operands: Sequence[Any], results: Sequence[Any]
    ) -> None:
        self._met(op, around, operands, results, None)

    def failed(
        self, op: Operation, around: Path, operands: Sequence[Any], error: WeftError
    ) -> None:
        if not self._failed:  # the ops around it fail, too
            self._failed = True
            self._met(op, around, operands, (), error)

    def _met(
        self, op: Operation, around: Path, operands: Sequence[Any], results: Sequence[Any],
        error: WeftError | None,
    ) -> None:  # fmt: skip
        iterations = iterations_of(around)
        number, self._number = self._number, self._number + 1
        self.names[op.name] = None
        if self.stop is None or not (error or self.stop.fits(op, iterations, number)):
            return
        self.reached = True
        self.stop = self.ask(Moment(op, number, iterations, operands, results, error))


def run_to(record: StepRecord, stop: Stop, ask: Ask) -> Replayed | None:
    """Run a record in the interpreter, stopping at `stop` first, and at an op that raises; None if
    the user has ended it. NotFoundError where it never comes to `stop`."""
    stepper = Stepper(stop, ask)
    try:
        made = run_again(record, "interpreter", stepper)
    except Quit:
        return None
    if not stepper.reached:
        known = list(stepper.names)
        why = "" if made.error is None else f": {made.error.what}"
        raise NotFoundError(
            f"'{record.name}' does not come to {stop.text}{suggest(stop.name, known)}{why}",
            hint=f"its ops are {', '.join(known)}; {STOPS}",
        )
    return made


class Console(cmd.Cmd):
    """The prompt of a stopped run."""

    prompt = "(weft) "

    def __init__(self, graph: Graph, stdin: TextIO | None = None, stdout: TextIO | None = None):
        super().__init__(stdin=stdin, stdout=stdout)
        self.use_rawinput = stdin is None and sys.stdin.isatty()
        self._names = value_names(graph)
        self._moment: Moment | None = None
        self._next: Stop | None = None

    def ask(self, moment: Moment) -> Stop | None:
        """As of `Ask`."""
        self._moment = moment
        self._say("\n".join(moment.lines(self._names)))
        self.cmdloop()
        return self._next

    def _say(self, text: str) -> None:
        self.stdout.write(text + "\n")

    def do_next(self, line: str) -> bool:
        """next: carry out one op more."""
        assert self._moment is not None
        self._next = Stop("the next op", number=self._moment.number + 1)
        return True

    do_n = do_next

    def do_until(self, line: str) -> bool:
        """until STOP: go on to there (OP, OP:N, FILE:LINE, FILE:LINE:N, #K, error)."""
        try:
            self._next = Stop.of(line.strip())
        except InvalidArgumentError as error:
            self._say(str(error))
            return False
        return True

    do_u = do_until

    def do_continue(self, line: str) -> bool:
        """continue: run to the end."""
        self._next = None
        return True

    do_c = do_continue

    def do_print(self, line: str) -> None:
        """print NAME: all of a value that the op was given or gave, as %3."""
        moment = self._moment
        assert moment is not None
        op = moment.op
        pairs = [*zip(op.operands, moment.operands, strict=False)]
        pairs += [*zip(op.results, moment.results, strict=False)]
        held = {self._names.get(v, ""): x for v, x in pairs}
        name = line.strip()
        if name in held:
            with np.printoptions(threshold=sys.maxsize):
                self._say(str(held[name]))
        else:
            self._say(f"there is no {name} here: {', '.join(filter(None, held))}")

    do_p = do_print

    def do_quit(self, line: str) -> bool:
        """quit: end the run."""
        raise Quit

    do_q = do_EOF = do_quit  # EOF: what `cmd` calls the end of input

    def emptyline(self) -> bool:
        """An empty line is `next`."""
        return self.do_next("")
