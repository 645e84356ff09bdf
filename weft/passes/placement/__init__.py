"""Placement: which device each op of a graph runs on, and why.

`place` works on graphs as the frontend makes them, before stacks and control flow are lowered.
"""

from weft.passes.placement.conflicts import PlacementError
from weft.passes.placement.costs import CostModel, Measured
from weft.passes.placement.devices import Device, Links, read_devices
from weft.passes.placement.placer import Placement, place
from weft.passes.placement.rates import Rates

__all__ = [
    "CostModel", "Device", "Links", "Measured", "Placement", "PlacementError", "Rates",
    "place", "read_devices",
]  # fmt: skip
