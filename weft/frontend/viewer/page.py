"""Pages: one HTML file each that needs nothing else, no server, no network, no fonts. `View` is
that of a step.

The data stands in a `<script type="application/json">`, style and script are inline, and a policy
in the page itself forbids every request."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Mapping
from functools import cached_property
from html import escape
from importlib.resources import files
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from weft.frontend.viewer.document import Document
from weft.frontend.viewer.static import draw_timeline
from weft.ir.drawing.notebook import MOST_BYTES, Frame
from weft.ir.drawing.svg import draw
from weft.ir.errors import InvalidArgumentError, NotFoundError
from weft.ir.locations import caller_location

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


class View:
    """A page that shows a step. `html` is its text; a notebook shows it in a frame."""

    def __init__(self, document: Document) -> None:
        self.document = document

    @cached_property
    def html(self) -> str:
        """The whole page, one file."""
        title = self.document.title
        told = (
            f'<noscript><div class="sheet"><p>This page shows <b>{escape(title)}</b> '
            f"{escape(self.document.subtitle)} by JavaScript. Without it there are the timeline "
            "and the last graph.</p>"
            f"{self._drawings(MOST_BYTES)}</div></noscript>\n"
        )
        return page_text(title, self.document.to_dict(), "view.js", told)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file; its path. NotFoundError if its folder is not there."""
        return save_page(path, self.html)

    def open(self) -> Path:
        """Write the page to a temporary file and open it in the browser; its path."""
        with NamedTemporaryFile("w", suffix=".html", delete=False, encoding="utf-8") as file:
            file.write(self.html)
        webbrowser.open(Path(file.name).as_uri())
        return Path(file.name)

    def show(self, height: int = 700) -> Frame:
        """The page in a frame of a notebook's cell, `height` pixels high."""
        return Frame(self.html, height)

    def _repr_html_(self) -> str:
        """The last graph and the timeline as drawings, for a notebook; no script. `show` has the
        page itself."""
        document = self.document
        title = f"<b>{escape(document.title)}</b> {escape(document.subtitle)}"
        html = f"{title}<br><code>.show()</code> shows the page."
        return html + self._drawings(MOST_BYTES - len(html.encode()))

    def _drawings(self, room: int) -> str:
        """The timeline and the last graph, as far as there is room for so many bytes."""
        document, html = self.document, ""
        drawings = [draw_timeline(document.plan.events)] if document.plan.events else []
        if document.passes:
            parts = document.passes[-1].program.parts
            drawings += [escape(part.device) + draw(part.graph) for part in parts]
        for drawing in drawings:
            if len(html.encode()) + len(drawing.encode()) + 100 < room:
                html += f'<div style="overflow:auto;max-height:500px">{drawing}</div>'
        return html

    def __repr__(self) -> str:
        return f"<View of {self.document.title}: {len(self.document.passes)} passes>"


def page_text(title: str, data: Mapping[str, Any], script: str, body: str) -> str:
    """A page: `body` as HTML, and `data` for the script, a file of `assets`."""
    held = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} - weft</title>\n<style>\n{asset('view.css')}</style></head>\n"
        f'<body>{body}<script type="application/json" id="data">{in_script(held)}</script>\n'
        f"<script>\n{asset('dom.js')}{asset(script)}</script></body></html>\n"
    )


def save_page(path: str | Path, html: str) -> Path:
    """Write a page to a file; its path. NotFoundError if its folder is not there,
    InvalidArgumentError if it cannot be written."""
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise NotFoundError(
            f"there is no folder {path.parent} for {path}", location=caller_location()
        )
    try:
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(
            f"cannot write {path}: {error.strerror}", location=caller_location()
        ) from None
    return path


def asset(name: str) -> str:
    """The text of a file of `assets`."""
    return (files("weft.frontend.viewer") / "assets" / name).read_text(encoding="utf-8")


def in_script(text: str) -> str:
    """JSON as it may stand in a script element: no `<` that could end it."""
    return text.replace("<", "\\u003c")
