"""`Scaffold`: the ops and the Saver with which a graph's session begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from weft.frontend.files.inputs import local_variables_initializer
from weft.frontend.session.graph import Graph
from weft.frontend.session.initializers import global_variables_initializer
from weft.frontend.session.session import Session
from weft.frontend.tensor import Tensor
from weft.frontend.tracing.effect import Effect
from weft.frontend.train.replicas.sharded_saver import ShardedSaver
from weft.frontend.train.saver import Saver
from weft.frontend.train.saver_graph import SaveOps
from weft.frontend.variable import Variable

_earlier: WeakKeyDictionary[Graph, Scaffold] = WeakKeyDictionary()


class Scaffold:
    """What is not given is made when the session is: an initializer of all variables, one of the
    local ones (counts of epochs), a Saver of all variables.

    init_op: run, with `init_feed_dict`, where there is no checkpoint; then `init_fn(scaffold,
    session)`. local_init_op: run in every new session. saver: what checkpoints hold; made if they
    are written, a `Saver`, or for a session on other tasks a `ShardedSaver`. A `Saver` given for
    such a session saves variables only, all by one task (`Saver.build`).
    """

    def __init__(
        self,
        init_op: Effect | None = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Scaffold, Session], object] | None = None,
        local_init_op: Effect | None = None,
        saver: Saver | ShardedSaver | None = None,
    ) -> None:
        self.init_op = init_op
        self.init_feed_dict = init_feed_dict
        self.init_fn = init_fn
        self.local_init_op = local_init_op
        self.saver = saver
        self.save_ops: SaveOps | None = None
        #: Per variable a bool: whether it has a value.
        self.ready: dict[str, Tensor] = {}

    def finalize(self, graph: Graph, remote: bool, saves: bool) -> None:
        """Add to the graph what is missing; to one that is finalized, what a session before it has
        added. saves: whether checkpoints are read or written; remote: by ops."""
        earlier = _earlier.get(graph) if graph.finalized else None
        if earlier is not None:
            self._take(earlier)
        with graph.as_default():
            waited: list[Variable] = [*graph.variables, *graph.local_variables]
            if self.init_op is None:
                self.init_op = global_variables_initializer()
            if self.local_init_op is None and graph.local_variables:
                self.local_init_op = local_variables_initializer()
            if self.saver is None and graph.variables and saves:
                self.saver = ShardedSaver() if remote else Saver()
            if isinstance(self.saver, Saver) and saves and remote and self.save_ops is None:
                self.save_ops = self.saver.build()
            if not self.ready:
                self.ready = {v.name: v.is_initialized() for v in waited}
        _earlier[graph] = self

    def _take(self, earlier: Scaffold) -> None:
        self.init_op = self.init_op or earlier.init_op
        self.local_init_op = self.local_init_op or earlier.local_init_op
        if self.saver is None:
            self.saver, self.save_ops = earlier.saver, earlier.save_ops
        self.ready = self.ready or earlier.ready

    def missing(self, session: Session) -> list[str]:
        """The names of the variables that have no value."""
        found = session.run(list(self.ready.values())) if self.ready else []
        return [name for name, there in zip(self.ready, found, strict=True) if not there]
