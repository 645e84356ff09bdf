"""The reference of the site: examples in docstrings (`>>>` lines and what they print) as blocks of
code, and classes without Python's own methods."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: A prompt and all lines up to an empty one.
_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class Examples(griffe.Extension):
    """What mkdocstrings shows of an object, as this site has it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Leave out what every class has; `__init__` is shown as the class's signature."""
        for name in [n for n in cls.members if n.startswith("__") and n != "__init__"]:
            cls.del_member(name)
