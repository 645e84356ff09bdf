"""Static SVG of a graph, without a script: what notebooks show of one, scopes folded.

Colours are those of the page's style: `currentColor` for lines and text, so that it can be read on
light and on dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from weft.ir.drawing.boxes import Box, boxes_of, boxes_of_op, op_class
from weft.ir.drawing.layout import Layout, Point, lay_out
from weft.ir.graph import Graph, Operation

#: Pixels of a character of a label and of a box's height. A longer label is cut.
CHARACTER, HEIGHT, LONGEST = 6.7, 24.0, 40
#: A drawing of more boxes is cut after so many.
MOST_DRAWN = 150

_FILLS = {
    "kernel": "#3fb95044", "product": "#388bfd44", "state": "#d2992244", "control": "#a371f744",
    "message": "#f8514944", "scope": "#8b949e33", "op": "none",
}  # fmt: skip


def shown(label: str) -> str:
    """A label, cut to what a box has room for."""
    return label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"


def size_of(box: Box) -> Point:
    """Width and height of a folded box."""
    if box.kind in ("input", "output"):
        return (len(shown(box.label)) * CHARACTER + 14, 20.0)
    return (len(shown(title(box))) * CHARACTER + 20, HEIGHT)


def title(box: Box) -> str:
    """What is written in a folded box."""
    return f"{box.label} ({box.count})" if box.kind in ("scope", "body") else box.label


def lay_out_box(box: Box) -> Layout:
    """The layout of what is in a box, all folded."""
    return lay_out([size_of(b) for b in box.boxes], [(a, b) for a, b, _ in box.edges])


def draw(graph: Graph) -> str:
    """The SVG of a graph, its scopes and kernels folded, under 100 kB. Of more than 150 boxes the
    first are drawn, and a line says how many there are."""
    return draw_box(boxes_of(graph), graph.name)


def draw_op(op: Operation) -> str:
    """The same of what an op does: the ops in it if it is fused."""
    return draw_box(boxes_of_op(op), op.name)


def draw_box(root: Box, name: str) -> str:
    """The same of what is in a box."""
    count = len(root.boxes)
    if count > MOST_DRAWN:
        root.boxes = root.boxes[:MOST_DRAWN]
        root.edges = [e for e in root.edges if e[1] < MOST_DRAWN]
    found = lay_out_box(root)
    lines = list(_edges(found)) + list(_boxes(root.boxes, found))
    width, height = found.width, found.height
    if count > MOST_DRAWN:
        text = f"the first {MOST_DRAWN} of {count} boxes"
        lines.append(f'<text x="12" y="{height + 14:.0f}">{text}</text>')
        height += 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace" font-size="11" '
        f'fill="currentColor" role="img" aria-label="{escape(name, quote=True)}">'
        + "".join(lines)
        + "</svg>"
    )


def _edges(found: Layout) -> list[str]:
    paths = "".join(path(points) for points in found.edges)
    return [f'<path d="{paths}" fill="none" stroke="currentColor" stroke-opacity=".45"/>']


def path(points: Sequence[Point]) -> str:
    """The `d` of a smooth curve through the points, from above to below."""
    (x, y), *rest = points
    text = f"M{x:g} {y:g}"
    for a, b in rest:
        middle = (y + b) / 2
        text += f"C{x:g} {middle:g} {a:g} {middle:g} {a:g} {b:g}"
        x, y = a, b
    return text


def _boxes(boxes: Sequence[Box], found: Layout) -> list[str]:
    lines = []
    for box, (x, y) in zip(boxes, found.boxes, strict=True):
        width, height = size_of(box)
        kind = "scope" if box.kind == "scope" else "op" if box.op is None else op_class(box.op)
        round = 10 if box.kind in ("input", "output") else 4
        told = escape(f"{box.label}: {box.note}" if box.note else box.label)
        lines.append(
            f'<g><title>{told}</title><rect x="{x:g}" y="{y:g}" width="{width:.0f}" '
            f'height="{height:g}" rx="{round}" fill="{_FILLS[kind]}" stroke="currentColor" '
            f'stroke-opacity=".6"/><text x="{x + width / 2:.1f}" y="{y + height / 2 + 4:g}" '
            f'text-anchor="middle">{escape(shown(title(box)))}</text></g>'
        )
    return lines
