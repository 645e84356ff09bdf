"""What partitioning gives: a graph for each device, and the messages between them."""

from __future__ import annotations

from weft.ir.dataclass import dataclass
from weft.ir.graph import Graph
from weft.ir.source import Locations
from weft.ir.text.printer import print_graph
from weft.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Part:
    """What runs on one device. graph: of stage "partitioned", or of that of the whole graph if it
    needs no other part and no Switch and Merge; its ops name no device. feeds: which
    arguments of the whole graph its own are; fetches: which results of the whole graph its own
    are."""

    device: str
    graph: Graph
    feeds: tuple[int, ...]
    fetches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor that goes from one device to another, in loops once in each iteration. nbytes: of
    one message, None if only a step knows. locations: of the user's op that makes it."""

    key: int
    tensor: str
    type: TensorType
    src: str
    dst: str
    locations: Locations

    @property
    def nbytes(self) -> int | None:
        """The bytes of one message, None if its size is not known."""
        return self.type.nbytes if self.type.is_static else None


@dataclass(frozen=True, slots=True)
class Partitioned:
    """All parts, in the order in which the graph names their devices; the edges by key."""

    parts: tuple[Part, ...]
    edges: tuple[Edge, ...]

    def __str__(self) -> str:
        return self.text()

    def text(self, *, locations: bool = True) -> str:
        """The graphs of all parts as text, each under its device."""
        return "\n".join(
            f"// device: {part.device}\n{print_graph(part.graph, locations=locations)}"
            for part in self.parts
        )
