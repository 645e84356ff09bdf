"""The pipelines: which passes run, in which order, and why. This page is all there is to it."""

from __future__ import annotations

from weft.passes.cse import cse
from weft.passes.dce import dce
from weft.passes.effects import order_effects
from weft.passes.fuse import fuse
from weft.passes.manager import Pass

#: Every pass by name, as `weft opt --passes=cse,dce` takes them.
PASSES: dict[str, Pass] = {
    "order_effects": order_effects,
    "cse": cse,
    "dce": dce,
    "fuse": fuse,
}

#: What `@wf.compile` and `Session.run` do to a graph whose shapes are all known.
STANDARD: tuple[Pass, ...] = (
    order_effects,  # afterwards pure ops may be moved and rewritten by their data alone
    cse,  # gradients recompute what the forward pass has
    dce,  # before fusion, or dead values would be written to memory
    fuse,  # last: from here on a graph is kernels
)
