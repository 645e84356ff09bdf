"""What of a graph's results rounding cannot change (`weft.ir.interpreter.rounding`), of graphs that
update variables, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.ir.graph import Graph
from weft.ir.interpreter import rounding
from weft.ir.interpreter.rounding import Overflow as Overflow
from weft.passes.pipelines import PASSES


def stable_results(
    graph: Graph, inputs: Sequence[np.ndarray[Any, Any]], state: dict[str, Any], seed: int
) -> tuple[list[Any], dict[str, Any]]:
    """(centre, spread) for each result and each variable after the step. Raises Overflow."""
    return rounding.stable_results(PASSES["expand_updates"](graph), inputs, state, seed)
