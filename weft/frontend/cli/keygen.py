"""`weft keygen`: make the secret that the tasks of a cluster share."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from weft.comm.keys import Secret, default_key_file
from weft.ir.errors import AlreadyExistsError, InvalidArgumentError


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `weft keygen`."""
    parser.add_argument(
        "file", nargs="?", help=f"where to write it (default: {default_key_file()})"
    )


def make_key(args: Namespace) -> Path:
    """Write a new key file of mode 0600 and return its path. AlreadyExistsError if it is there,
    InvalidArgumentError if it cannot be written."""
    path = default_key_file() if args.file is None else Path(args.file)
    try:
        if args.file is None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        Secret.generate().to_file(path)
    except FileExistsError:
        raise AlreadyExistsError(
            f"there is a file {path}",
            hint="tasks that have its key could not talk to those with a new one: remove it first",
        ) from None
    except OSError as error:
        raise InvalidArgumentError(f"the key file {path} cannot be written: {error}") from None
    return path
