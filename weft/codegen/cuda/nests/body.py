"""Body of a loop nest in a kernel: loads at one place of its loops, statements, stores.

The statements are a device function `element` of what is read. Threads take `lanes` neighbouring
elements of the last loop; buffers that it walks contiguously are then accessed by 128 bits."""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.call import Address, Arg
from weft.codegen.cuda.source.dtypes import literal, load, loaded, nbytes, stored
from weft.codegen.cuda.source.elementwise import expression
from weft.codegen.cuda.source.kernel import LANES, LOADS, STORES, memory_dtype
from weft.codegen.cuda.source.writer import MANY, IndexDtype, Source, index_dtype, product
from weft.codegen.nests.nest import Access, Nest
from weft.ir.dataclass import dataclass
from weft.ir.spec import ConstArray

#: At most so many statements, of all lanes together.
MOST_STATEMENTS = 512


@dataclass(frozen=True, slots=True)
class Buffers:
    """The buffers of a nest's outputs and operands, by their numbers."""

    outputs: Sequence[Arg]
    operands: Sequence[Arg]


def output_of(nest: Nest, access: Access) -> int | None:
    """The number of the output whose buffer an access shares."""
    return dict(nest.in_place).get(access.leaf) if isinstance(access.leaf, int) else None


def arg_of(nest: Nest, access: Access, buffers: Buffers) -> Arg:
    """The buffer that an access reads."""
    shared = output_of(nest, access)
    if shared is not None:
        return buffers.outputs[shared]
    assert isinstance(access.leaf, int)
    return buffers.operands[access.leaf]


def is_aligned(arg: Arg) -> bool:
    """Whether a buffer begins at a multiple of 16 bytes."""
    return not isinstance(arg, Address) or arg.offset % 16 == 0


def is_contiguous(strides: Sequence[int]) -> bool:
    """Whether the last loop walks a buffer element by element."""
    return bool(strides) and strides[-1] == 1


def lanes_of(nest: Nest) -> int:
    """How many elements of the last loop a thread takes: vectors of 128 bits of the narrowest
    buffer, two of the widest at most, or as few as are one of the widest where the last of several
    loops has no whole number of more; 1 if nothing is walked contiguously, or that does not fit."""
    walks = [(a.dtype, a.strides) for a in nest.loads if isinstance(a.leaf, int)]
    walks += [(w.dtype, w.strides) for w in nest.stores]
    sizes = [nbytes(dtype) for dtype, strides in walks if is_contiguous(strides)]
    if not sizes or any(strides[-1] > 1 for _, strides in walks):
        return 1
    lanes = min(16 // min(sizes), 32 // max(sizes))
    while lanes * len(nest.statements) > MOST_STATEMENTS:
        lanes //= 2
    while lanes > 1 and len(nest.extents) > 1 and nest.extents[-1] % lanes:
        lanes //= 2  # fewer of the narrow ones: the widest still takes 128 bits at a time
        lanes = lanes if lanes * max(sizes) >= 16 else 1
    return max(lanes, 1)


def index_of(nest: Nest) -> IndexDtype:
    """The dtype of index arithmetic: u32 if every place and every "index" is less than 2**31."""
    spans = [product(nest.extents)]
    for access in nest.loads:
        ends = [s * max(n - 1, 0) for s, n in zip(access.strides, nest.extents, strict=True)]
        ends += [stride * size for _, stride, size in access.picks]
        low = access.offset + sum(e for e in ends if e < 0)
        high = access.offset + sum(e for e in ends if e > 0)
        spans += [high + 1] if low >= 0 or (access.leaf == "index" and -low < MANY) else [MANY]
    return index_dtype(*spans)


class Body:
    """Reads, computes and writes the elements of `nest` in the kernel `s`."""

    def __init__(self, s: Source, nest: Nest, buffers: Buffers, lanes: int = 1) -> None:
        self.s, self.nest, self.buffers, self.lanes = s, nest, buffers, lanes
        self.literals: dict[int, str] = {}
        #: if any, the only loads of vectors: of those the fold knows where vectors begin
        self.odd: frozenset[int] = frozenset()
        self._pointers: dict[tuple[Arg, str], str] = {}
        self._strides: dict[tuple[int, tuple[int, ...]], tuple[str, list[str]]] = {}
        #: positions of the loops' indices that have been written, by their names
        self._places: dict[object, str] = {}
        for k, access in enumerate(nest.loads):
            if isinstance(access.leaf, ConstArray):
                self.literals[k] = literal(access.dtype, access.leaf.array.item())
        self.read = [k for k in range(len(nest.loads)) if k not in self.literals]
        self.results = list(dict.fromkeys(w.source for w in nest.stores if w.source[0] == "value"))
        self.loads = {k: self._pointer(f"in{k}", nest.loads[k]) for k in self.read}
        self.stores = [
            s.pointer(f"out{w.output}", w.dtype, buffers.outputs[w.output])
            if w.reduction is None or not any(nest.reduced)
            else ""
            for w in nest.stores
        ]
        for access in nest.loads:
            if not isinstance(access.leaf, ConstArray):
                self._walk(access.offset, access.strides)
        for store, pointer in zip(nest.stores, self.stores, strict=True):
            if pointer:
                self._walk(0, store.strides)
        self._picks = {
            k: [
                (n, s.number(f"pick{k}", stride), s.number(f"size{k}", size))
                for n, stride, size in nest.loads[k].picks
            ]
            for k in self.read
        }
        self.element = self._define()

    def _pointer(self, name: str, access: Access) -> str:
        if access.leaf == "index":
            return ""
        arg = arg_of(self.nest, access, self.buffers)
        key = (arg, memory_dtype(access.dtype))
        if key not in self._pointers:
            self._pointers[key] = self.s.pointer(name, access.dtype, arg)
        return self._pointers[key]

    def _walk(self, offset: int, strides: tuple[int, ...]) -> tuple[str, list[str]]:
        """Offset and strides as numbers of the kernel; equal walks share them."""
        key = (offset, strides)
        if key not in self._strides:
            s, k = self.s, len(self._strides)
            start = s.number(f"offset{k}", offset) if offset else s.const(0)
            texts = [
                s.const(n) if n in (0, 1) else s.number(f"stride{k}_{loop}", n)
                for loop, n in enumerate(strides)
            ]
            self._strides[key] = start, texts
        return self._strides[key]

    def _define(self) -> str:
        """The device function `element`, and its name; none if there are no statements."""
        nest = self.nest
        if not self.results:
            return ""
        name = self.s.fresh("element")
        values: list[str] = []

        def atom(reference: tuple[str, int]) -> str:
            kind, k = reference
            if kind == "value":
                return values[k]
            return self.literals.get(k, f"l{k}")

        lines = [f"def {name}({', '.join(f'l{k}' for k in self._needed())}):"]
        for n, statement in enumerate(nest.statements):
            args = [atom(r) for r in statement.args]
            text = expression(statement.op, statement.dtype, statement.result_dtype, args)
            values.append(f"v{n}")
            lines.append(f"    v{n} = {text}")
        lines += [f"    return {', '.join(atom(r) for r in self.results)}", "\n"]
        self.s.function("\n".join(lines))
        return name

    def _needed(self) -> list[int]:
        """The loads that statements take."""
        used = {k for s in self.nest.statements for kind, k in s.args if kind == "load"}
        return [k for k in self.read if k in used]

    # -- places -----------------------------------------------------------------------------------

    def place(self, offset: int, strides: tuple[int, ...], at: Sequence[str]) -> str:
        """A name for offset + sum(index * stride), written once for equal walks."""
        key = (offset, strides, tuple(at))
        if key not in self._places:
            s, (start, steps) = self.s, self._walk(offset, strides)
            zero = s.const(0)
            terms = [start] * (start != zero)
            terms += [s.mul(i, n) for i, n in zip(at, steps, strict=True) if n != zero]
            text = s.total(terms)
            self._places[key] = text if text.isidentifier() or "(" not in text else s.let(text, "p")
        return self._places[key]

    def begin(self) -> None:
        """At the start of a scope: what has been written before is not valid in it."""
        self._places.clear()

    def _lane(self, place: str, strides: tuple[int, ...], lane: int, offset: int = 0) -> str:
        """The place of a lane from that of the first one."""
        if lane == 0 or not strides or strides[-1] == 0:
            return place
        step = self._walk(offset, strides)[1][-1]
        return self.s.add(place, self.s.mul(self.s.const(lane), step))

    # -- reading ----------------------------------------------------------------------------------

    def values(
        self, at: Sequence[str], lanes: int, tiles: dict[int, list[str]] | None = None
    ) -> Values:
        """What is read at these indices of the loops and the `lanes - 1` next ones of the last.
        tiles: of loads that have been read already, their values, lane by lane."""
        read: dict[int, list[str]] = {}
        for k in self.read:
            if tiles and k in tiles:
                read[k] = tiles[k]
            else:
                read[k] = self._load(k, at, lanes, read)
        return Values(self, [{k: v[lane] for k, v in read.items()} for lane in range(lanes)])

    def _load(self, k: int, at: Sequence[str], lanes: int, read: dict[int, list[str]]) -> list[str]:
        s, access, pointer = self.s, self.nest.loads[k], self.loads[k]
        place = self.place(access.offset, access.strides, at)
        still = not access.strides or access.strides[-1] == 0
        moving = [n for n, _, _ in access.picks if self.nest.loads[n].strides[-1:] != (0,)]
        if not moving:
            place = self._picked(k, place, read, 0)
        if still and not moving:
            value = s.let(self._element(k, place), f"x{k}")
            return [value] * lanes
        if not moving and self._is_vector(k, lanes):
            return self._vector(k, place, lanes)
        values = []
        for lane in range(lanes):
            spot = self._lane(place, access.strides, lane, access.offset)
            if moving:
                spot = self._picked(k, spot, read, lane)
            values.append(s.let(self._element(k, spot), f"x{k}"))
        assert pointer or access.leaf == "index"
        return values

    def _element(self, k: int, place: str) -> str:
        access = self.nest.loads[k]
        if access.leaf != "index":
            return load(access.dtype, self.loads[k], place)
        if self.s.index == "u32":  # as a signed number: offset and strides may be negative
            return expression("astype", "i32", access.dtype, [f"i32({place})"])
        return expression("astype", "i64", access.dtype, [place])

    def _picked(self, k: int, place: str, read: dict[int, list[str]], lane: int) -> str:
        """The place, moved by what the index loads say: from the end if negative. An index out of
        bounds, which a check before this kernel tells of, touches the first or last element."""
        s = self.s
        for n, stride, size in self._picks[k]:
            dtype, index = self.nest.loads[n].dtype, read[n][lane]
            index = s.let(f"i64({index})", "index")
            if dtype.startswith("i"):
                index = s.let(
                    f"i64({index} + i64({size})) if {index} < i64(0) else {index}", "index"
                )
            if dtype.startswith("i") or dtype == "u64":  # of u64 numbers from 2**63 on are negative
                index = s.let(f"i64(0) if {index} < i64(0) else {index}", "index")
            last = f"i64(i64({size}) - i64(1))"
            index = s.let(f"{last} if {index} > {last} else {index}", "index")
            place = s.let(s.add(place, s.mul(s.cast(index), stride)), "p")
        return place

    def _is_vector(self, k: int, lanes: int) -> bool:
        access = self.nest.loads[k]
        if self.odd:
            return k in self.odd and lanes > 1
        if access.leaf == "index" or not is_aligned(arg_of(self.nest, access, self.buffers)):
            return False
        steps = (access.offset, *access.strides[:-1], *(stride for _, stride, _ in access.picks))
        return self._fits(access.dtype, access.strides, steps, lanes)

    def _fits(
        self, dtype: str, strides: tuple[int, ...], steps: tuple[int, ...], lanes: int
    ) -> bool:
        """Whether `lanes` elements are whole vectors at addresses that are multiples of 16."""
        wide = LANES[memory_dtype(dtype)]
        return is_contiguous(strides) and lanes % wide == 0 and all(n % wide == 0 for n in steps)

    def _vector(self, k: int, place: str, lanes: int) -> list[str]:
        s, dtype = self.s, self.nest.loads[k].dtype
        memory = memory_dtype(dtype)
        names: list[str] = []
        for start in range(0, lanes, LANES[memory]):
            group = [s.fresh(f"x{k}") for _ in range(LANES[memory])]
            spot = s.add(place, s.const(start)) if start else place
            s.line(f"{', '.join(group)} = {LOADS[memory]}({self.loads[k]}, {spot})")
            names += group
        if memory == dtype:
            return names
        return [s.let(loaded(dtype, name), f"x{k}") for name in names]

    # -- writing ----------------------------------------------------------------------------------

    def write(self, at: Sequence[str], made: Values) -> None:
        """The stores of all elements (none of folds) at these indices."""
        s, lanes = self.s, len(made.lanes)
        for store, pointer in zip(self.nest.stores, self.stores, strict=True):
            if not pointer:
                continue
            place = self.place(0, store.strides, at)
            texts = [stored(store.dtype, made.source(store.source, n)) for n in range(lanes)]
            memory, steps = memory_dtype(store.dtype), store.strides[:-1]
            aligned = is_aligned(self.buffers.outputs[store.output])
            if aligned and self._fits(store.dtype, store.strides, steps, lanes):
                for start in range(0, lanes, LANES[memory]):
                    spot = s.add(place, s.const(start)) if start else place
                    group = ", ".join(texts[start : start + LANES[memory]])
                    s.line(f"{STORES[memory]}({pointer}, {spot}, {group})")
                continue
            for lane, text in enumerate(texts):
                s.line(f"{pointer}[{self._lane(place, store.strides, lane)}] = {text}")


class Values:
    """Loaded values and results of statements, lane by lane."""

    def __init__(self, body: Body, read: list[dict[int, str]]) -> None:
        self._body = body
        self.lanes = read
        self._made: list[dict[tuple[str, int], str]] = []
        if body.element:
            needed = body._needed()
            for lane in read:
                names = [body.s.fresh("y") for _ in body.results]
                args = ", ".join(lane[k] for k in needed)
                body.s.line(f"{', '.join(names)} = {body.element}({args})")
                self._made.append(dict(zip(body.results, names, strict=True)))

    def source(self, reference: tuple[str, int], lane: int) -> str:
        """The register value of a statement or load."""
        kind, k = reference
        if kind == "value":
            return self._made[lane][reference]
        return self._body.literals.get(k) or self.lanes[lane][k]
