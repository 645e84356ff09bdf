"""The body of a transformed function: it is traced apart, and what a pass makes of it is appended
to the current trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.frontend.control.region import Body, Kind, outer_control, store
from weft.frontend.core import pytree
from weft.frontend.core.device_scope import place_new
from weft.frontend.core.function_trace import function_name
from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import StateHandle, Trace, current_trace
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Block, Value
from weft.ir.locations import caller_location


def after_control(trace: Trace, start: int) -> None:
    """Have the ops of a trace from number `start` on run after what `wf.control_dependencies`
    around say: they were appended by a pass."""
    if trace.control:
        for op in trace.builder.ops[start:]:
            op.control = tuple(dict.fromkeys((*op.control, *trace.control)))


class Transformed:
    """A function traced for a transformation, within the current trace.

    block: its arguments are those of the function and then one for each of `captured`, values of
    the current trace; its results are `leaves`, the function's, and then the values that the
    variables it has `written` have at its end. UnsupportedError if it acts on objects of the host
    in a `wf.Graph`, where what comes after what is for control operands to say.
    """

    def __init__(
        self,
        what: str,
        fn: Callable[..., Any],
        call: Callable[[list[Tensor]], Any],
        kinds: Sequence[Kind],
    ) -> None:
        trace = current_trace()
        assert trace is not None
        self.trace: Trace = trace
        self.name = function_name(fn)
        body = Body(f"{what} of {self.name}", fn, call, kinds)
        if body.trace.in_graph and (body.trace.acts or outer_control(body)):
            raise UnsupportedError(
                f"{what}: '{self.name}' acts on objects of the host, or prints, in a wf.Graph",
                hint=f"do it outside of what wf.{what} is given",
                location=caller_location(),
            )
        #: Whether it prints, calls Python or the like.
        self.acts = body.trace.acts
        self.leaves: list[Tensor] = body.leaves
        self.paths, self.structure = body.paths, body.structure
        self.written: list[StateHandle] = body.written
        values = [body.trace.lift(t) for t in body.leaves]
        states = body.values_of(self.written)
        self.captured: list[Value] = list(body.trace.captures)
        self.block: Block = body.block([*values, *states], self.captured)
        read = {value for values in body.trace.seen.values() for value in values}
        #: The arguments of the block that are read from variables.
        self.states = [a for a in self.block.args if a in read]
        self._start = len(trace.builder.ops)

    def placed(self) -> None:
        """Give the ops that were appended since what scopes around say: devices, and what comes
        before."""
        place_new(self.trace, self._start)
        after_control(self.trace, self._start)

    def nested(self, results: Sequence[Tensor], states: Sequence[Value] = ()) -> Any:
        """The results as the function nests them, after the variables have got their values."""
        kept, _ = store(self.written, states, list(results))
        return pytree.unflatten(self.structure, kept)
