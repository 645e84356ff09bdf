"""Static drawings for notebooks, without a script: a timeline as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from weft.frontend.viewer.facts import Event

#: So many bars are drawn, those that take longest: less than 100 kB.
MOST_BARS = 300
#: Pixels: of the drawing, of a lane, of a character.
WIDTH, LANE, CHARACTER = 900, 22, 6.8
#: Characters of the name of a kernel, and of a lane.
_LONGEST, _LONGEST_LANE = 60, 48
_COLOURS = (
    "#4c8dff", "#2da44e", "#d4a72c", "#a371f7", "#f0883e", "#39c5cf", "#db61a2", "#8b949e",
)  # fmt: skip


def draw_timeline(events: Sequence[Event]) -> str:
    """The SVG of a run: a lane for each thread of each task, a bar for each kernel or node."""
    end = max((e.end for e in events), default=0.0) or 1.0
    lanes = list(dict.fromkeys(e.lane for e in events))
    shown = sorted(sorted(events, key=lambda e: e.begin - e.end)[:MOST_BARS], key=lambda e: e.begin)
    colours = {name: k for k, name in enumerate(dict.fromkeys(e.name for e in shown))}
    names = [_ends(lane, _LONGEST_LANE) for lane in lanes]
    left = max(90.0, 10 + CHARACTER * max(map(len, names), default=0))
    scale = (WIDTH - left - 10) / end
    lines = [
        f'<text x="2" y="{LANE * k + 15}">{escape(name)}</text>' for k, name in enumerate(names)
    ]
    for event in shown:
        x, width = left + event.begin * scale, max((event.end - event.begin) * scale, 0.7)
        places = " ".join(one.replace("\\", "/").rpartition("/")[2] for one in event.lines[:4])
        told = f"{_short(event.name, _LONGEST)}: {event.end - event.begin:,.2f} us {places}"
        lines.append(
            f'<rect x="{x:.1f}" y="{LANE * lanes.index(event.lane) + 3}" width="{width:.1f}" '
            f'height="{LANE - 6}" fill="{_COLOURS[colours[event.name] % len(_COLOURS)]}">'
            f"<title>{escape(told.rstrip())}</title></rect>"
        )
    below = LANE * len(lanes) + 14
    lines += [
        f'<text x="{left + end * scale * k / 4:.0f}" y="{below}" '
        f'text-anchor="{"end" if k == 4 else "middle"}">'
        f"{end * k / 4:,.1f} us</text>"
        for k in range(5)
    ]
    if len(shown) < len(events):
        below += 18
        lines.append(
            f'<text x="2" y="{below}">the {len(shown)} longest of {len(events):,} events</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{below + 6}" '
        'font-family="monospace" font-size="11" fill="currentColor" role="img" '
        f'aria-label="timeline">{"".join(lines)}</svg>'
    )


def _ends(text: str, most: int) -> str:
    """The begin and the end of a text: lanes differ at both."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
