"""Placement: which device each op of a graph runs on, and why.

`place` works on graphs as the frontend makes them, before stacks and control flow are lowered.
Enters: a graph, devices, links and costs. Leaves: a `Placement`, with the reason for each op.
Imports: `ir` (its `cost` too), `rewriting`, `fusion.fuse`, `sizes.py`, `manager.py`. Read `placer`
first."""

from weft.passes.placement.constraints import PlacementError
from weft.passes.placement.costs import CostModel, Measured
from weft.passes.placement.devices import Device, Links, Rates, read_devices
from weft.passes.placement.placer import Placement, PlacePass, place
from weft.passes.placement.search import Search

__all__ = [
    "CostModel", "Device", "Links", "Measured", "PlacePass", "Placement", "PlacementError",
    "Rates", "Search", "place", "read_devices",
]  # fmt: skip
