"""Names of checkpoint files that a file names: state files and manifests may come from anywhere."""

from __future__ import annotations

import os

SUFFIX = ".safetensors"
#: Of the file that says which files a checkpoint of several consists of.
MANIFEST = ".manifest.json"


def check_file_name(name: object, suffixes: tuple[str, ...] = (SUFFIX, MANIFEST)) -> str:
    """`name`, if it is that of a file in the folder of the file that names it, with one of the
    suffixes; ValueError otherwise."""
    if not isinstance(name, str) or not name.endswith(suffixes):
        raise ValueError(f"it names {name!r}, which is no {' or '.join(suffixes)} file")
    if "\0" in name or os.path.basename(name) != name:
        raise ValueError(f"it names {name!r}, which is not in its folder")
    return name
