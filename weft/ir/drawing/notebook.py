"""HTML for notebooks: a fragment without scripts, which every notebook shows, or a page in a frame.

Notebooks strip scripts from what they do not trust, so the fragment is a static drawing
(`_repr_html_`); what has a script stands in an `<iframe>` of its own (`show`)."""

from __future__ import annotations

from html import escape

from weft.ir.drawing.svg import draw
from weft.ir.graph import Graph
from weft.ir.text.printer import print_graph

#: Bytes of a cell at most; a longer text is cut.
MOST_BYTES = 100_000


class Frame:
    """A page in an `<iframe>`, `height` pixels high."""

    def __init__(self, html: str, height: int) -> None:
        self.html, self.height = html, height

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{escape(self.html, quote=True)}" width="100%" '
            f'height="{self.height}" style="border:1px solid #8884" sandbox="allow-scripts">'
            "</iframe>"
        )

    def __repr__(self) -> str:
        return f"<a page of {len(self.html):,} characters, for a notebook>"


def graph_html(graph: Graph) -> str:
    """A graph as a drawing with its scopes and kernels folded, and its text, under 100 kB."""
    count = sum(1 for _ in graph.walk())
    drawing = draw(graph)
    room = MOST_BYTES - len(drawing.encode()) - 1000
    return (
        f"<details open><summary>graph <b>{escape(graph.name)}</b>: {count} ops, stage "
        f'{graph.stage}</summary><div style="overflow:auto;max-height:600px">{drawing}</div>'
        f"</details>{folded('text', print_graph(graph, locations=False), room)}"
    )


def folded(title: str, text: str, room: int) -> str:
    """A text that opens by a click, cut to so many bytes."""
    shown = escape(text)
    if len(shown.encode()) > room:
        kept = shown.encode()[: max(0, room)].decode(errors="ignore")
        shown = kept[: kept.rfind("\n") + 1] + "... (cut; print it to see all)"
    return f"<details><summary>{escape(title)}</summary><pre>{shown}</pre></details>"
