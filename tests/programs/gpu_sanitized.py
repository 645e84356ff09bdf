"""`python gpu_sanitized.py NAME`: a few steps of a test program on /gpu:0."""

from __future__ import annotations

import sys

import numpy as np
from loop_programs import PROGRAMS as LOOPS
from training_programs import PROGRAMS

import weft as wf
from weft.frontend.core import pytree


def main(name: str) -> None:
    if name in PROGRAMS:
        make, args = PROGRAMS[name]
        function = make()
    else:
        function, args = LOOPS[name]
    step = wf.compile(device="gpu:0")(function)
    for _ in range(3):  # launched one by one, recorded, replayed
        made = pytree.tree_leaves(step(*args))
    print(name, [float(np.sum(np.asarray(value), dtype=np.float64)) for value in made])


if __name__ == "__main__":
    main(sys.argv[1])
