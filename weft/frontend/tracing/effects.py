"""Reads and writes of variables while a graph is traced, and the order between them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING

from weft.frontend.tracing.device_scope import place
from weft.ir.graph import Value
from weft.ir.spec import AttrValue

if TYPE_CHECKING:
    from weft.frontend.tracing.trace import Trace
    from weft.frontend.variable import Variable
    from weft.runtime.resources.variables import VariableState


class Effects:
    """Reads and writes of variables in one trace, and the order between them. Variables that share
    their state are one here: the first of them."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.refs: dict[Variable, Value] = {}
        self.reads: dict[Variable, list[Value]] = {}  # every value read, for gradients
        self.updates: dict[Variable, list[Value]] = {}  # graph: what updates gave, for gradients
        self._first: dict[VariableState, Variable] = {}
        self._since_write: dict[Variable, dict[object, Value]] = {}
        self._last_write: dict[Variable, Value] = {}

    def first(self, variable: Variable) -> Variable:
        """The first variable with its state that the trace has met."""
        return self._first.setdefault(variable.state, variable)

    def ref(self, variable: Variable, scoped: bool = False) -> Value:
        """The handle, made on first use. scoped: the variable is made here, and so is on the device
        that the scopes say."""
        variable = self.first(variable)
        found = self.refs.get(variable)
        if found is None:
            trace = self.trace
            name = unique_name(variable.name, trace.variables, trace.numbers)
            attrs: Mapping[str, AttrValue] = {
                "name": name, "dtype": variable.dtype, "shape": variable.shape,
            }  # fmt: skip
            (found,) = trace.builder.emit("variable", (), attrs)
            trace.variables[name] = variable
            self.refs[variable] = found
            variable._used_in(trace)
            if scoped and found.op is not None:
                place(found.op, trace)
        return found

    def read(self, variable: Variable, body: Trace | None = None) -> Value:
        """The value at this point; one read up to the next write, in graphs one for each `body`."""
        variable = self.first(variable)
        known = self._since_write.setdefault(variable, {})
        key = self.trace.control, body if self.trace.kind == "graph" else None
        if key not in known:
            written = self._last_write.get(variable)
            after = () if written is None else (written,)
            (known[key],) = self.trace.emit("read", (self.ref(variable),), control=after)
            self.reads.setdefault(variable, []).append(known[key])
        return known[key]

    def update(self, op: str, variable: Variable, operands: Sequence[Value]) -> Value:
        """In a graph: append an update, one access that reads and writes; the value after it."""
        variable = self.first(variable)
        (value,) = self.trace.emit(op, (self.ref(variable), *operands))
        self.updates.setdefault(variable, []).append(value)
        return value

    def values(self, variable: Variable) -> list[Value]:
        """Every value of it that was read, and what updates of it gave."""
        variable = self.first(variable)
        return [*self.reads.get(variable, ()), *self.updates.get(variable, ())]

    def write(self, variable: Variable, value: Value) -> Value:
        """Append the assignment; the token of it."""
        variable = self.first(variable)
        if self.trace.kind == "graph":
            return self.trace.emit("assign", (self.ref(variable), value))[0]
        before = [*self._since_write.pop(variable, {}).values()]
        if variable in self._last_write:
            before.append(self._last_write[variable])
        (token,) = self.trace.emit("assign", (self.ref(variable), value), control=before)
        self._last_write[variable] = token
        return token


def unique_name(name: str, taken: Container[str], tried: dict[str, int] | None = None) -> str:
    """`name`, or `name_1`, `name_2`, ... if it is taken. tried: by name the number that was found
    last, where names that are taken stay so."""
    if name not in taken:
        return name
    count = 1 if tried is None else tried.get(name, 0) + 1
    while f"{name}_{count}" in taken:
        count += 1
    if tried is not None:
        tried[name] = count
    return f"{name}_{count}"
