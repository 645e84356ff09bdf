"""Ops: the table of all ops by name, one file for each family, and the builder that appends them.

Enters: operands' types and attributes. Leaves: `OpSpec` rows (type rule, NumPy reference) in `OPS`,
to which `register` adds those of the user's program. Imports: the files of `weft/ir` itself."""

from __future__ import annotations

import itertools

from weft.ir.dataclass import dataclass
from weft.ir.errors import AlreadyExistsError, NotFoundError, suggest
from weft.ir.locations import NO_SCOPES
from weft.ir.ops import (
    collectives,
    control_flow,
    data_movement,
    io,
    linear_algebra,
    products,
    reduction,
    resources,
    text_processing,
    windows,
)
from weft.ir.ops import core as ops_core
from weft.ir.ops import dynamic as ops_dynamic
from weft.ir.ops import elementwise as ops_elementwise
from weft.ir.ops import fourier as ops_fourier
from weft.ir.ops import random as ops_random
from weft.ir.ops import scalar_function as ops_scalar_function
from weft.ir.ops import state as ops_state
from weft.ir.ops import strings as ops_strings
from weft.ir.process import ForkLock
from weft.ir.spec import OpSpec

_TABLES = (
    ops_core.TABLE,
    ops_state.TABLE,
    ops_elementwise.TABLE,
    ops_scalar_function.TABLE,
    data_movement.SHAPE_TABLE,
    reduction.REDUCTION_TABLE,
    data_movement.INDEX_TABLE,
    reduction.SORT_TABLE,
    ops_fourier.TABLE,
    products.MATMUL_TABLE,
    products.ATTENTION_TABLE,
    products.QUANTIZED_TABLE,
    linear_algebra.TABLE,
    ops_random.TABLE,
    control_flow.STRUCTURED_TABLE,
    control_flow.DATAFLOW_TABLE,
    ops_dynamic.TABLE,
    ops_dynamic.PADDED_TABLE,
    resources.QUEUE_TABLE,
    resources.RESOURCE_TABLE,
    io.HOST_FUNCTION_TABLE,
    windows.CONV_TABLE,
    windows.WINDOW_TABLE,
    ops_strings.TABLE,
    text_processing.TABLE,
    io.FILE_TABLE,
    io.REPORT_TABLE,
    control_flow.STACK_TABLE,
    control_flow.COMMUNICATION_TABLE,
    collectives.TABLE,
    (collectives.EXCHANGE,),
)

OPS: dict[str, OpSpec] = {spec.name: spec for table in _TABLES for spec in table}
NO_SCOPES.update(OPS)
#: The ops whose reference calls have native kernels instead, where they are large
#: (`runtime/dynamic/rows.py`).
HAVE_KERNELS = ops_dynamic.BY_KERNELS | ops_strings.BY_KERNELS


def lookup(name: str) -> OpSpec:
    """The row of op `name`. Raises NotFoundError with the closest names."""
    spec = OPS.get(name)
    if spec is None:
        raise NotFoundError(f"there is no op '{name}'{suggest(name, list(OPS))}")
    return spec


@dataclass(frozen=True, slots=True)
class Registration:
    """The registration of a user's op. number: another one for each, so that two ops of one name
    are told apart.

    inputs: the names of the operands, None if there may be any number. elementwise: each element
    of the results depends on the same element of each operand. module, file: that registered it.
    """

    number: int
    inputs: tuple[str, ...] | None
    elementwise: bool
    module: str = ""
    file: str = ""


#: The ops of the table that the user's program registered.
REGISTERED: dict[str, Registration] = {}
_numbers = itertools.count()
_lock = ForkLock()


def register(
    spec: OpSpec, inputs: tuple[str, ...] | None, elementwise: bool, *, replace: bool = False,
    module: str = "", file: str = "",
) -> Registration:  # fmt: skip
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
        made = REGISTERED[spec.name] = Registration(
            next(_numbers), inputs, elementwise, module, file
        )
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
