"""`Session.reset`: clear containers of variables and resources."""

from __future__ import annotations

from collections.abc import Sequence

from weft.frontend.queues.sharing import forget
from weft.ir.errors import TypeRuleError
from weft.ir.locations import caller_location
from weft.runtime.resources.variables import clear_containers


def reset(target: str = "", containers: Sequence[str] | None = None) -> None:
    """Clear containers: their variables have no value from now on, as before an initializer ran,
    and their shared names stand for nothing: what is made under them later is new.

    containers: names as given to `wf.container` or `container=`; None is the default container,
    that of all variables made in graphs without another. Variables made outside of graphs without a
    container or shared name keep their values, which no initializer could bring back. Resources
    stay with those who hold them. Sessions stay open (TensorFlow 1 closes them): variables belong
    to the program, so a step that runs meanwhile ends first, and later ones need an initializer.
    target: the address of a task; then the containers are those of all tasks of its cluster.
    """
    names = [""] if containers is None else containers
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeRuleError(
            f"wf.Session.reset: containers is {containers!r}, not a list of names",
            location=caller_location(),
        )
    if target:
        from weft.frontend.session.remote import Remote  # who has no cluster does not load it

        remote = Remote(target)
        try:
            remote.reset(names)
        finally:
            remote.close()
        return
    forget(names)
    clear_containers(names)
