"""Ops that the user's program adds to the op table, and takes out of it again."""

from __future__ import annotations

import itertools

from weft.ir.dataclass import dataclass
from weft.ir.errors import AlreadyExistsError, NotFoundError, suggest
from weft.ir.fork import ForkLock
from weft.ir.ops import OPS
from weft.ir.spec import OpSpec


@dataclass(frozen=True, slots=True)
class Registration:
    """number: another one for each registration, so that two ops of one name are told apart.

    inputs: the names of the operands, None if there may be any number. elementwise: each element
    of the results depends on the same element of each operand.
    """

    number: int
    inputs: tuple[str, ...] | None
    elementwise: bool


#: The ops of the table that the user's program registered.
REGISTERED: dict[str, Registration] = {}
_numbers = itertools.count()
_lock = ForkLock()


def register(
    spec: OpSpec, inputs: tuple[str, ...] | None, elementwise: bool, *, replace: bool = False
) -> Registration:
    """Add an op to the table. AlreadyExistsError if its name is taken; `replace` takes the place
    of an op that was registered, never of weft's own."""
    with _lock:
        if spec.name in OPS and spec.name not in REGISTERED:
            raise AlreadyExistsError(
                f"there is an op '{spec.name}' in weft itself",
                hint="choose another name, for example with a prefix of your project",
            )
        if spec.name in REGISTERED and not replace:
            raise AlreadyExistsError(
                f"the op '{spec.name}' is registered already",
                hint="replace=True registers it anew, without its kernels and its gradient "
                "(a notebook's cell that runs again)",
            )
        made = REGISTERED[spec.name] = Registration(next(_numbers), inputs, elementwise)
        OPS[spec.name] = spec
    return made


def unregister(name: str) -> None:
    """Take a registered op out of the table. NotFoundError if there is none of that name."""
    with _lock:
        registration(name)
        del REGISTERED[name], OPS[name]


def registration(name: str) -> Registration:
    """The registered op of that name. NotFoundError."""
    found = REGISTERED.get(name)
    if found is None:
        own = "; it is weft's own" if name in OPS else suggest(name, list(REGISTERED))
        raise NotFoundError(
            f"there is no registered op '{name}'{own}", hint="wf.register_op registers one"
        )
    return found
