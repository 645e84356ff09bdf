"""The values of variables as one session sees them: those of the program, or its own."""

from __future__ import annotations

from weft.frontend.session.graph import Graph
from weft.frontend.state.variable import Variable, variables_of
from weft.ir.errors import UnsupportedError
from weft.ir.locations import caller_location
from weft.ir.process import ForkLock
from weft.runtime.resources.variables import VariableState


def check_own(own_variables: bool, on_cluster: bool) -> None:
    """UnsupportedError for a session on a cluster with values of its own."""
    if own_variables and on_cluster:
        raise UnsupportedError(
            "wf.Session(own_variables=True): the variables of a cluster belong to its tasks, and "
            "all sessions share them, as in TensorFlow",
            hint="make another graph, whose variables have other names, or use containers",
            location=caller_location(),
        )


class SessionStates:
    """The state of each variable of a graph, for a session.

    own: variables that were made in the graph have a state of this session (TensorFlow 1's rule):
    no value until its initializer runs here. What got its value when it was made in the graph, such
    as slots of optimizers and the keys of random ops, begins with that. Variables made outside of
    graphs have the one state that they have everywhere. Not own: so has each variable.
    """

    def __init__(self, graph: Graph, own: bool) -> None:
        self._graph, self.own = graph, own
        self._made: dict[VariableState, VariableState] = {}
        self._lock = ForkLock()

    def of(self, variable: Variable) -> VariableState:
        """The state of one variable."""
        shared = variable.state
        if not (self.own and variable.of_graph):
            return shared
        with self._lock:
            found = self._made.get(shared)
            if found is None:
                start = variable._initial if variable._initial_tensor is None else None
                found = self._made[shared] = VariableState(
                    shared.name, shared.dtype, shared.type.shape, start, shared.container
                )
        return found

    def all(self) -> dict[str, VariableState]:
        """Those of all variables of the graph so far, by their names there."""
        return {name: self.of(v) for name, v in variables_of(self._graph._trace).copy().items()}

    def clear(self) -> None:
        """Forget the session's own values."""
        with self._lock:
            self._made.clear()
