"""TensorFlow 1's options of gradients that say how, not what: which sum of gradients, what waits
for what. They are checked and change nothing, since weft's compiler decides both."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.locations import caller_location


class AggregationMethod:
    """How the gradients of a tensor that is used several times are added: TensorFlow 1's choices.

    Each is taken, and none changes anything: the sum is `add` ops in the order of the program,
    which the compiler fuses into what makes and what reads the gradients, so it needs no memory of
    its own. IndexedSlices are added as lists of rows.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     x = wf.placeholder(wf.float32, [])
    ...     tree = wf.tf1.AggregationMethod.EXPERIMENTAL_TREE
    ...     (slope,) = wf.gradients(x * x + wf.exp(x), x, aggregation_method=tree)
    ...     print(session.run(slope, {x: 0.0}))
    1.0
    """

    ADD_N = 0
    DEFAULT = 0
    EXPERIMENTAL_TREE = 1
    EXPERIMENTAL_ACCUMULATE_N = 2


def check_gradient_options(what: str, aggregation_method: Any, gate_gradients: Any) -> None:
    """InvalidArgumentError for values that TensorFlow 1 does not have: those that it has are one
    and the same here."""
    for name, given in (
        ("aggregation_method", aggregation_method), ("gate_gradients", gate_gradients),
    ):  # fmt: skip
        if given is not None and not _is_choice(given):
            raise InvalidArgumentError(
                f"{what}: {name}={given!r:.60} is none of TensorFlow's",
                hint="leave it out: it changes nothing here",
                location=caller_location(),
            )


def _is_choice(given: Any) -> bool:
    """Whether it is 0, 1 or 2, also of NumPy, or a bool: no array and no symbolic tensor is."""
    try:
        return isinstance(given, np.bool_) or operator.index(given) in (0, 1, 2)
    except (TypeError, WeftError):
        return False
