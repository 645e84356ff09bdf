"""A reader of TensorBoard's event files that shares no code with weft: what is in them, by field
number, with each checksum computed bit by bit."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = {1: "<f4", 2: "<f8"}


def crc32c(data: bytes) -> int:
    """CRC-32C by polynomial division (RFC 3720)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    return crc ^ 0xFFFFFFFF


def records(data: bytes, checked: bool = True) -> Iterator[bytes]:
    """The whole records; what is left of one at the end is passed over."""
    at = 0
    while at + 12 <= len(data):
        length, first = struct.unpack_from("<QI", data, at)
        body = data[at + 12 : at + 12 + length]
        if len(body) < length or at + 16 + length > len(data):
            return
        (second,) = struct.unpack_from("<I", data, at + 12 + length)
        for part, stored in ((data[at : at + 8], first), (body, second)):
            if checked:
                crc = crc32c(part)
                assert ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF == stored
        yield body
        at += 16 + length


def parsed(data: bytes) -> dict[int, list[Any]]:
    """A message: values by field number, ints and bytes (fixed numbers as their bytes)."""
    out: dict[int, list[Any]] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value - (1 << 64) if value >> 63 else value

    while at < len(data):
        key = number()
        kind = key & 7
        if kind == 0:
            value: Any = number()
        else:
            size = {1: 8, 5: 4}.get(kind) or number()
            assert kind in (1, 2, 5)
            assert at + size <= len(data)
            value, at = data[at : at + size], at + size
        out.setdefault(key >> 3, []).append(value)
    return out


@dataclass
class Value:
    """One value of a summary: a number, an array, or strings."""

    tag: str
    plugin: str
    data_class: int
    content: bytes
    value: Any


@dataclass
class Event:
    """One event."""

    wall_time: float
    step: int
    version: str = ""
    graph: bytes = b""
    restart: bool = False
    values: list[Value] = field(default_factory=list)
    tag: str = ""
    run_metadata: bytes = b""


def value(data: bytes) -> Value:
    """Summary.Value."""
    fields = parsed(data)
    meta = parsed(fields[9][0])
    plugin = parsed(meta[1][0])
    content = plugin.get(2, [b""])[0]
    held: Any = None
    if 2 in fields:
        (held,) = struct.unpack("<f", fields[2][0])
    elif 8 in fields:
        held = tensor(fields[8][0])
    return Value(fields[1][0].decode(), plugin[1][0].decode(), meta[4][0], content, held)


def tensor(data: bytes) -> Any:
    """A TensorProto: an array, or a list of bytes."""
    fields = parsed(data)
    shape = [parsed(dim).get(1, [0])[0] for dim in parsed(fields[2][0]).get(2, [])]
    if fields[1][0] == 7:
        assert len(fields.get(8, [])) == np.prod(shape, dtype=int)
        return fields.get(8, [])
    dtype = DTYPES[fields[1][0]]
    content = fields[4][0] if 4 in fields else b"".join(fields[5])
    return np.frombuffer(content, dtype).reshape(shape)


def summary(data: bytes) -> list[Value]:
    """The values of a serialized Summary."""
    return [value(v) for v in parsed(data).get(1, [])]


def event(data: bytes) -> Event:
    """One event."""
    fields = parsed(data)
    (wall_time,) = struct.unpack("<d", fields[1][0])
    made = Event(wall_time, fields.get(2, [0])[0])
    made.version = fields.get(3, [b""])[0].decode()
    made.graph = fields.get(4, [b""])[0]
    made.values = [v for part in fields.get(5, []) for v in summary(part)]
    made.restart = 7 in fields and parsed(fields[7][0])[1] == [1]
    if 8 in fields:
        tagged = parsed(fields[8][0])
        made.tag, made.run_metadata = tagged[1][0].decode(), tagged[2][0]
    return made


def files(folder: Path) -> list[Path]:
    """The event files of a run, in the order in which TensorBoard reads them."""
    return sorted(p for p in folder.iterdir() if "tfevents" in p.name)


def events(folder: Path) -> list[Event]:
    """All events of a run."""
    return [event(record) for file in files(folder) for record in records(file.read_bytes())]


def values(folder: Path) -> dict[str, list[tuple[int, Any]]]:
    """(step, value) by tag."""
    out: dict[str, list[tuple[int, Any]]] = {}
    for one in events(folder):
        for v in one.values:
            out.setdefault(v.tag, []).append((one.step, v.value))
    return out


@dataclass
class Node:
    """One node of a GraphDef."""

    name: str
    op: str
    inputs: list[str]
    device: str
    attrs: dict[str, dict[int, list[Any]]]


def nodes(graph: bytes) -> list[Node]:
    """The nodes of a GraphDef."""
    made = []
    for row in parsed(graph)[1]:
        fields = parsed(row)
        pairs = [parsed(pair) for pair in fields.get(5, [])]
        made.append(
            Node(
                fields[1][0].decode(),
                fields[2][0].decode(),
                [i.decode() for i in fields.get(3, [])],
                fields.get(4, [b""])[0].decode(),
                {pair[1][0].decode(): parsed(pair[2][0]) for pair in pairs},
            )
        )
    return made


def node_spans(run_metadata: bytes) -> dict[str, dict[str, tuple[int, int]]]:
    """Begin and end in microseconds by device and node, of a RunMetadata."""
    made: dict[str, dict[str, tuple[int, int]]] = {}
    for device in parsed(parsed(run_metadata)[1][0])[1]:
        fields = parsed(device)
        rows = [parsed(row) for row in fields.get(2, [])]
        made[fields[1][0].decode()] = {
            row[1][0].decode(): (row[2][0], row[2][0] + row[5][0]) for row in rows
        }
    return made


def node_micros(run_metadata: bytes) -> dict[str, dict[str, int]]:
    """Microseconds by device and node."""
    spans = node_spans(run_metadata)
    return {d: {n: end - begin for n, (begin, end) in rows.items()} for d, rows in spans.items()}


def node_memory(run_metadata: bytes) -> dict[str, tuple[int, list[tuple[int, list[int], int]]]]:
    """Of each node that has some: bytes in all; of each output the number of its dtype, its shape
    and its bytes."""
    made: dict[str, tuple[int, list[tuple[int, list[int], int]]]] = {}
    for device in parsed(parsed(run_metadata)[1][0])[1]:
        for row in (parsed(row) for row in parsed(device).get(2, [])):
            total = sum(parsed(held)[2][0] for held in row.get(6, []))
            outputs = []
            for number, output in enumerate(map(parsed, row.get(7, []))):
                assert output.get(1, [0]) == [number]
                tensor = parsed(output[3][0])
                shape = [parsed(dim).get(1, [0])[0] for dim in parsed(tensor[2][0]).get(2, [])]
                nbytes = parsed(tensor[4][0]).get(2, [0])[0]
                outputs.append((tensor[1][0], shape, nbytes))
            if total or outputs:
                made[row[1][0].decode()] = total, outputs
    return made
