"""SLURM's short forms: lists of hosts `n[1-3,07],gpu[01-02]-ib` and of counts `2(x3),1`.

Own parsers, so that no `scontrol` needs to run (man scontrol, "show hostnames"; hostlist(3)).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from weft.ir.errors import InvalidArgumentError

_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
_HOST = re.compile(r"[A-Za-z0-9_.-]+")
_MOST = 1 << 16  # as in SLURM (MAX_RANGE): an environment must not take all memory


def expand_hostlist(text: str) -> list[str]:
    """The hosts, in order: leading zeros kept, several brackets in one name allowed.

    InvalidArgumentError for text that is no hostlist, and for more than 65536 hosts.
    """
    hosts: list[str] = []
    for part in _split(text):
        names = [""]
        for piece in re.finditer(r"([^\[\]]*)(?:\[([^\[\]]*)\])?", part):
            literal, ranges = piece[1], piece[2]
            numbers = [""] if ranges is None else _numbers(ranges, text)
            if len(names) * len(numbers) + len(hosts) > _MOST:
                raise _bad(text, f"it has more than {_MOST} hosts")
            names = [name + literal + number for name in names for number in numbers]
        if not all(map(_HOST.fullmatch, names)):
            raise _bad(text, f"'{part}' is no host")
        hosts += names
    return hosts


def compress_hostlist(hosts: Sequence[str]) -> str:
    """A hostlist that expands to these hosts in this order; neighbours that count up are joined."""
    parts: list[str] = []
    i = 0
    while i < len(hosts):
        stem, digits = _stem(hosts[i])
        n = 1
        while digits and i + n < len(hosts):
            following = str(int(digits) + n).zfill(len(digits))
            if hosts[i + n] != stem + following:
                break
            n += 1
        last = str(int(digits) + n - 1).zfill(len(digits)) if digits else ""
        parts.append(hosts[i] if n == 1 else f"{stem}[{digits}-{last}]")
        i += n
    return ",".join(parts)


def expand_counts(text: str) -> list[int]:
    """`2(x3),1` -> [2, 2, 2, 1]. InvalidArgumentError for anything else."""
    counts: list[int] = []
    for part in text.split(","):
        found = _COUNT.fullmatch(part.strip())
        repeats = int(found[2] or 1) if found else 0
        if found is None or not 0 < repeats <= _MOST - len(counts):
            raise InvalidArgumentError(f"{text!r:.200} is no list of counts, as 2(x3),1")
        counts += [int(found[1])] * repeats
    return counts


def expand_ports(text: str) -> list[int]:
    """`12000-12003,12007` -> the ports. InvalidArgumentError for anything else."""
    ports = [int(number) for number in _numbers(text, text)]
    if not all(0 < port < 65536 for port in ports):
        raise _bad(text, "a port is not in 1 to 65535")
    return ports


def _split(text: str) -> list[str]:
    """The parts between commas outside of brackets; well-formed brackets or an error."""
    parts, depth = [""], 0
    for char in text.strip():
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise _bad(text, "its brackets do not fit")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    if depth:
        raise _bad(text, "its brackets do not fit")
    if not all(parts):
        raise _bad(text, "a host is empty")
    return parts


def _numbers(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for one in ranges.split(","):
        found = _RANGE.fullmatch(one)
        low, high = (found[1], found[2] or found[1]) if found else ("1", "0")
        if len(low) > 18 or len(high) > 18 or not 0 <= int(high) - int(low) < _MOST - len(numbers):
            raise _bad(text, f"'{one}' is no range")
        numbers += [str(i).zfill(len(low)) for i in range(int(low), int(high) + 1)]
    return numbers


def _stem(host: str) -> tuple[str, str]:
    """The name without the digits at its end, and these; none if they are too many to count."""
    found = re.search(r"[0-9]{1,18}$", host, re.ASCII)
    return (host[: found.start()], found[0]) if found else (host, "")


def _bad(text: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{text!r:.200} is no list of hosts: {why}")
