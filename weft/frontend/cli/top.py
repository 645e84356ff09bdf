"""`weft top`: what the tasks of a running cluster are doing, live."""

from __future__ import annotations

import json
import math
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator

from weft.frontend.cli.top_view import Look, rows_of, tables
from weft.frontend.session.remote import Remote
from weft.runtime.cluster.master import ask_stats

#: How long the tasks may take to answer at first; those that do not are shown as lost.
CONNECT_SECONDS = 5.0


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("target", help="the address of one of the tasks: tcp://host:port")
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="between two looks (1 s)"
    )
    parser.add_argument(
        "--count", type=int, default=0, metavar="N", help="end after N looks (0: go on until ^C)"
    )
    parser.add_argument(
        "--json", action="store_true", help="a line of JSON for each look in place of tables"
    )
    parser.add_argument("--lines", type=int, default=12, metavar="N", help="rows of each table")
    parser.add_argument(
        "--key-file", metavar="FILE", help="the cluster's secret, made by `weft keygen`"
    )


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found <= 86400:
        raise ArgumentTypeError(f"{text!r} is no time between looks")
    return found


def run_top(args: Namespace, say: Callable[[str], None]) -> None:
    """Look at the cluster again and again. Errors as a session has that cannot reach it."""
    remote = Remote(
        args.target, key_file=args.key_file, connect_seconds=CONNECT_SECONDS, whole=False
    )
    try:
        looks = _looks(remote, args.interval, args.count)
        if args.json:
            for now, _ in looks:
                say(json.dumps(now))
        else:
            _show(looks, args.target, args.lines)
    except KeyboardInterrupt:
        pass  # how it ends
    finally:
        remote.close()


def _looks(remote: Remote, interval: float, count: int) -> Iterator[tuple[Look, Look]]:
    """What the tasks say, and what they said before."""
    before: Look = {}
    number = 0
    while True:
        began = time.monotonic()
        now = ask_stats(remote.master)
        yield now, before
        before = now
        number += 1
        if number == count:
            return
        time.sleep(max(0.0, began + interval - time.monotonic()))


def _show(looks: Iterator[tuple[Look, Look]], target: str, lines: int) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if not console.is_terminal:  # into a file or a pipe: one after the other
        for now, before in looks:
            console.print(tables(rows_of(now, before), target, lines))
        return
    with Live(console=console, auto_refresh=False, screen=True) as live:
        for now, before in looks:
            live.update(tables(rows_of(now, before), target, lines), refresh=True)
