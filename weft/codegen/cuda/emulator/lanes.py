"""Array emulator: all threads of several blocks together, a value being an array over threads.

`LaneText` makes Python of kernel source. Control flow becomes masks: True (all threads), False
(none) or an array of bools. A variable is assigned under the mask of the active threads, unless no
other thread can read it any more. All threads go through the text together, so every statement is
carried out by all before the next: what that hides, the race detector of `memory.py` finds. `Lanes`
is the blocks that the text runs on, and how their threads meet."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.codegen.cuda.emulator import memory
from weft.codegen.cuda.emulator.memory import Elements, Lane, Locals, Mask, Shadow, Value
from weft.codegen.cuda.emulator.numpy_functions import multiply_add
from weft.codegen.cuda.emulator.translator import Text
from weft.codegen.cuda.source.kernel import (
    CASTS,
    MMAS,
    SHUFFLES,
    VOTES,
    Pointer,
    poison,
    signature_of,
)
from weft.codegen.cuda.source.typecheck import (
    EmulationError,
    Function,
    Program,
    leaves,
    loads,
    stored,
)


class LaneText(Text):
    """The text of a program's functions over arrays."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.names |= {name: getattr(memory, name) for name in memory.__all__}
        self.loops: list[str] = []
        self.head = self.counter = ""
        self.local: set[str] = set()

    def compiled(self) -> Callable[..., Any]:
        """The kernel: `kernel(K, mask, *arguments)`."""
        for function in self.program.functions:
            self.function(function)
        text = "\n".join(self.lines)
        exec(compile(text, f"<{self.program.kernel.name} in lanes>", "exec"), self.names)
        made = self.names[f"f{self.program.main.number}"]
        assert callable(made)
        return made

    def function(self, f: Function) -> None:
        """The definition of one function."""
        self.f, self.loops = f, []
        self.local = _unshared(f)
        arguments = "".join(f", v_{name}" for name in f.parameters)
        self.line(f"def f{f.number}(K, m{arguments}):")
        self.indent += 1
        variables = [name for name in f.variables if name not in f.parameters]
        for name in variables:
            self.line(f"v_{name} = None")
        self.line("alive = m")
        self.line("result = None")
        self.block(f.body, "m")
        self.line("return result")
        self.indent -= 1

    def block(self, body: list[ast.stmt], mask: str) -> None:
        """Statements for the threads of `mask`, a variable that loses those who leave."""
        depth = self.indent
        for statement in body:
            self.statement(statement, mask)
            if isinstance(statement, ast.Return | ast.Break | ast.Continue):
                break
            if statement is not body[-1] and any(leaves(statement)):
                self.line(f"if {mask} is not False:")
                self.indent += 1
        self.indent = depth

    def nested(self, body: list[ast.stmt], mask: str) -> None:
        """`body` if any thread is in `mask`."""
        self.line(f"if {mask} is not False:")
        self.indent += 1
        self.line("pass")
        self.block(body, mask)
        self.indent -= 1

    def statement(self, node: ast.stmt, mask: str) -> None:
        match node:
            case ast.Assign(targets=[target], value=value):
                self.assign(target, value, mask)
            case ast.Expr(value=value):
                self.line(self.of(value, mask))
            case ast.If(test=test, body=body, orelse=orelse):
                then, other = self.new("m"), self.new("m")
                self.line(f"{then}, {other} = split({mask}, {self.of(test, mask)})")
                self.nested(body, then)
                if orelse:
                    self.nested(orelse, other)
                if any(leaves(node)):
                    self.line(f"{mask} = union({then}, {other})")
            case ast.While(test=test, body=body):
                self.loop(node, mask, lambda loop: self.split_loop(test, loop))
            case ast.For():
                self.count(node, mask)
            case ast.Return(value=value):
                self.leave(value, mask)
            case ast.Break():
                self.line(f"{self.loops[-1]} = minus({self.loops[-1]}, {mask})")
                self.line(f"{mask} = False")
            case ast.Continue():
                self.line(f"{mask} = False")
            case ast.Pass():
                self.line("pass")

    def split_loop(self, test: ast.expr, loop: str) -> None:
        self.line(f"{loop}, _ = split({loop}, {self.of(test, loop)})")

    def loop(self, node: ast.While | ast.For, mask: str, narrow: Callable[[str], None]) -> None:
        """A loop whose head was written but for `narrow`: which threads go on."""
        loop, inside = self.new("l"), self.new("m")
        self.line(f"{loop} = {mask}")
        self.line("while True:" if isinstance(node, ast.While) else self.head)
        self.indent += 1
        narrow(loop)
        self.line(f"if {loop} is False:")
        self.line("    break")
        self.line(f"{inside} = {loop}")
        if isinstance(node, ast.For):
            self.bind(node, inside)
        self.loops.append(loop)
        self.block(node.body, inside)
        self.loops.pop()
        self.indent -= 1
        if any(leaves(node)):
            self.line(f"{mask} = both({mask}, alive)")

    def count(self, node: ast.For, mask: str) -> None:
        call = node.iter
        assert isinstance(call, ast.Call)
        dtype = self.f.counters[node]
        bounds = [f"{self.of(a, mask, dtype)}.astype(D_{dtype})" for a in call.args]
        first, step = "0", "1"
        if len(bounds) > 1:
            first = bounds[0]
        if len(bounds) > 2:
            step = bounds[2]
        last = bounds[min(1, len(bounds) - 1)]
        trips, top, k = self.new("n"), self.new("n"), self.new("k")
        start, stride = self.new("b"), self.new("s")
        self.line(f"{start}, {stride} = {first}, {step}")
        self.line(f"{trips}, {top} = count({start}, {last}, {stride}, {mask})")
        self.head = f"for {k} in range({top}):"
        self.counter = f"counted({start}, {k}, {stride}, D_{dtype})"
        self.loop(node, mask, lambda loop: self.line(f"{loop} = within({loop}, {k}, {trips})"))

    def bind(self, node: ast.For, mask: str) -> None:
        assert isinstance(node.target, ast.Name)
        self.put(node.target.id, self.counter, mask)

    def leave(self, value: ast.expr | None, mask: str) -> None:
        """`return`: the threads of `mask` leave the function, and every loop that they are in."""
        if isinstance(value, ast.Tuple):
            texts = ", ".join(self.of(v, mask) for v in value.elts)
            self.line(f"result = select_all({mask}, ({texts}), result)")
        elif value is not None:
            chosen = "select_all" if isinstance(self.f.result, tuple) else "select"
            self.line(f"result = {chosen}({mask}, {self.of(value, mask)}, result)")
        self.line(f"alive = minus(alive, {mask})")
        for loop in self.loops:
            self.line(f"{loop} = minus({loop}, {mask})")
        if self.f.is_kernel:
            self.line("K.alive = alive")
        self.line(f"{mask} = False")

    def assign(self, target: ast.expr, value: ast.expr, mask: str) -> None:
        if isinstance(target, ast.Tuple):
            names = [self.new("x") for _ in target.elts]
            if isinstance(value, ast.Tuple):
                text = ", ".join(self.of(v, mask) for v in value.elts)
            else:
                text = self.of(value, mask)
            self.line(f"{', '.join(names)} = {text}")
            for name, variable in zip(names, target.elts, strict=True):
                assert isinstance(variable, ast.Name)
                self.put(variable.id, name, mask)
        elif isinstance(target, ast.Subscript):
            self.store(target, value, mask)
        else:
            assert isinstance(target, ast.Name)
            self.put(target.id, self.of(value, mask), mask)

    def put(self, name: str, text: str, mask: str) -> None:
        """Assigns a variable for the threads of `mask`."""
        if name in self.local or isinstance(self.f.variables[name], Pointer):
            self.line(f"v_{name} = {text}")
        else:
            self.line(f"v_{name} = select({mask}, {text}, v_{name})")

    def both(self, is_and: bool, left: str, node: ast.expr, mask: str) -> str:
        join = "np.logical_and" if is_and else "np.logical_or"
        if self.pure(node):
            return f"{join}({left}, {self.of(node, mask)})"
        first, second, inner = self.new("x"), self.new("x"), self.new("m")
        self.line(f"{first} = {left}")
        self.line(f"{second} = np.False_")
        self.line(f"{inner} = split({mask}, {first})[{0 if is_and else 1}]")
        self.line(f"if {inner} is not False:")
        self.indent += 1
        self.line(f"{second} = {self.of(node, inner)}")
        self.indent -= 1
        return f"{join}({first}, {second})"

    def choice(self, node: ast.IfExp, mask: str, dtype: str) -> str:
        test = self.of(node.test, mask)
        if self.pure(node.body) and self.pure(node.orelse):
            body, orelse = self.of(node.body, mask, dtype), self.of(node.orelse, mask, dtype)
            return f"choose({test}, {body}, {orelse})"
        then, other, value = self.new("m"), self.new("m"), self.new("x")
        self.line(f"{then}, {other} = split({mask}, {test})")
        self.line(f"{value} = None")
        for inner, branch in ((then, node.body), (other, node.orelse)):
            self.line(f"if {inner} is not False:")
            self.indent += 1
            self.line(f"{value} = select({inner}, {self.of(branch, inner, dtype)}, {value})")
            self.indent -= 1
        return value

    def pure(self, node: ast.expr) -> bool:
        """Whether nothing can go wrong if `node` is evaluated for threads that do not ask."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Subscript):
                return False
            if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.LShift | ast.RShift):
                return False
            if not isinstance(inner, ast.Call):
                continue
            name = inner.func.id if isinstance(inner.func, ast.Name) else ""
            floats = name in CASTS and self.f.kinds[inner.args[0]] in ("f32", "f64")
            if floats and name not in ("f32", "f64"):
                return False
            if signature_of(name) is None and name not in CASTS and name != "boolean":
                return False
        return True

    def special(self, node: ast.Call, name: str, mask: str) -> str:
        space, _, what = name.partition(".")
        texts = [self.of(a, mask) for a in node.args]
        if space == "atomic":
            dtype = str(self.f.kinds[node])
            pointer, index = texts[0], texts[1]
            value = self.of(node.args[2], mask, dtype)
            done = self.new("x")
            self.line(
                f"{done} = {pointer}.atomic({what!r}, {index}, {value}, {mask}, {node.lineno})"
            )
            return done
        if name in SHUFFLES or name in VOTES:
            arguments = ", ".join([repr(name), *texts, mask, str(node.lineno)])
            return f"K.{'shuffle' if name in SHUFFLES else 'vote'}({arguments})"
        if name in MMAS:
            return f"K.mma({name!r}, ({', '.join(texts)}), {mask}, {node.lineno})"
        return f"K.{name}({', '.join([*texts, mask, str(node.lineno)])})"


def _unshared(f: Function) -> set[str]:
    """The variables that can be assigned whatever the mask: assigned by one statement, and read
    only in the innermost loop that holds it, so by threads that have just been there."""
    places: dict[str, list[ast.stmt]] = {}

    def visit(body: list[ast.stmt], loop: ast.stmt | None) -> None:
        for statement in body:
            within = statement if isinstance(statement, ast.While | ast.For) else loop
            for name in stored(statement):
                place = within if within is not None else f.node
                places.setdefault(name, []).append(place)
            for part in ("body", "orelse"):
                visit(getattr(statement, part, []), within)

    visit(f.body, None)
    held = {place: loads(place) for place in {f.node, *itertools.chain(*places.values())}}
    return {
        name
        for name, where in places.items()
        if name not in f.parameters
        and len(where) == 1
        and held[where[0]][name] == held[f.node][name]
    }


_FULL = 0xFFFFFFFF
_WARP = np.arange(32)


class Lanes:
    """Blocks `first` to `first + number` of a grid of `blocks`, each of `threads`.

    A block has `width` lanes, a multiple of 32; those above `threads` are never there."""

    def __init__(
        self, program: Program, first: int, number: int, blocks: int, threads: int, check: bool
    ) -> None:
        self.program, self.first, self.check = program, first, check
        self.width = -(-threads // 32) * 32
        self.number = number
        self.count = number * self.width
        self.all: Lane = np.arange(self.count)
        inside = self.all % self.width
        self.thread = inside.astype(np.int32)
        self.lane = self.thread & np.int32(31)
        self.block: Value = np.int32(first)
        if number > 1:
            self.block = (first + self.all // self.width).astype(np.int32)
        self.threads, self.blocks = np.int32(threads), np.int32(blocks)
        self.alive: Mask = True if threads == self.width else np.asarray(inside < threads)
        self.barriers = np.zeros(number, np.int64)
        self.meetings = np.zeros(self.count // 32, np.int64)
        self.arrays: dict[int, Elements] = {}

    def fault(self, what: str, line: int, lane: int) -> EmulationError:
        """An error of one thread."""
        block, thread = divmod(lane, self.width)
        return self.program.fault(what, line, self.first + block, thread)

    def present(self, mask: Mask) -> Lane:
        """The threads of `mask`, which has some."""
        return self.all if mask is True else np.flatnonzero(mask)

    def array(self, mask: Mask) -> npt.NDArray[np.bool_]:
        """`mask` as an array."""
        return np.full(self.count, mask) if isinstance(mask, bool) else np.asarray(mask)

    def shared(self, line: int, dtype: str, size: int) -> Elements:
        """The shared array of a line, one in each block."""
        if line not in self.arrays:
            data = np.full(self.number * size, poison(dtype))
            starts = self.all // self.width * size
            shadow = Shadow(data.size, bare=True) if self.check else None
            self.arrays[line] = Elements(self, "a shared array", data, size, starts, shadow)
        return self.arrays[line]

    def local(self, line: int, dtype: str, size: int) -> Locals:
        """An array of each thread."""
        return Locals(self, line, dtype, size)

    def amount(self, by: Value, mask: Mask, line: int) -> Value:
        """By how much is shifted: 0 to 63, as all is of 64 bits on the way."""
        if self.check:
            self._refuse(by, (by < 0) | (by > 63), mask, line, "a shift by {}")
        return by

    def divisor(self, by: Value, mask: Mask, line: int) -> Value:
        """By what is divided without a look at it."""
        if self.check:
            self._refuse(by, by == 0, mask, line, "a division by {}")
        return by

    def _refuse(self, values: Value, bad: Value, mask: Mask, line: int, what: str) -> None:
        there = np.broadcast_to(bad, self.count) & self.array(mask)
        if there.any():
            lane = int(np.flatnonzero(there)[0])
            raise self.fault(what.format(np.broadcast_to(values, self.count)[lane]), line, lane)

    def whole(self, x: Value, dtype: np.dtype[Any], mask: Mask, line: int) -> Value:
        """The float as an integer, towards zero: within the dtype, or it means nothing."""
        if self.check:
            info = np.iinfo(dtype)
            low, high = float(info.min), float(info.max + 1)
            inside = ((x > low - 1) | (x == low)) & (x < high)
            self._refuse(x, np.logical_not(inside), mask, line, f"{{}} as {dtype}: out of range")
        return x.astype(dtype)

    # ------------------------------------------------------------------------------ meeting others

    def _missing(self, what: str, line: int, missing: npt.NDArray[np.bool_]) -> None:
        if missing.any():
            lane = int(np.flatnonzero(missing)[0])
            raise self.fault(f"{what}, but this thread is elsewhere", line, lane)

    def syncthreads(self, mask: Mask, line: int, name: str = "syncthreads") -> None:
        """A barrier: all threads of a block that have not left are there, or none."""
        if mask is not True:
            here = self.array(mask).reshape(self.number, -1)
            there = np.logical_or.reduce(here, axis=1)
            missing = self.array(self.alive).reshape(self.number, -1) & ~here & there[:, None]
            self._missing(f"others of its block are at {name}", line, missing.ravel())
            self.barriers += there
        else:
            self.barriers += 1

    def syncthreads_or(self, condition: Value, mask: Mask, line: int) -> Value:
        """Whether the condition holds for any thread of the block, after a barrier."""
        self.syncthreads(mask, line, "syncthreads_or")
        holds = np.broadcast_to(condition, self.count) & self.array(mask)
        result = holds.reshape(self.number, -1).any(axis=1)
        return np.repeat(result, self.width)

    def syncwarp(self, members: Value, mask: Mask, line: int) -> None:
        """The threads of a warp that `members` has a bit for meet."""
        self.members("syncwarp", members, mask, line)
        self.meetings += self.array(mask).reshape(-1, 32).any(axis=1)

    def members(self, name: str, members: Value, mask: Mask, line: int) -> None:
        """Looks whether all of `members` who have not left are there, and name the same."""
        full = not isinstance(members, np.ndarray) and int(members) & _FULL == _FULL
        if full and mask is True:
            return
        here, alive = self.array(mask), self.array(self.alive)
        bits = np.broadcast_to(members, self.count).astype(np.int64)
        named = (bits[:, None] >> _WARP & 1).astype(np.bool_)  # [thread, lane of its warp]
        own = named[self.all, self.lane]
        if (here & ~own).any():
            lane = int(np.flatnonzero(here & ~own)[0])
            raise self.fault(f"{name}: its mask has no bit for the thread itself", line, lane)
        warps = here.reshape(-1, 32)
        wanted = (named & here[:, None]).reshape(-1, 32, 32).any(axis=1)
        missing = wanted & alive.reshape(-1, 32) & ~warps
        self._missing(f"others of its warp wait for it in {name}", line, missing.ravel())
        low = (bits & _FULL).reshape(-1, 32)
        same = low[:, :, None] == low[:, None, :]
        pairs = named.reshape(-1, 32, 32) & warps[:, :, None] & warps[:, None, :]
        if (pairs & ~same).any():
            lane = int(np.flatnonzero((pairs & ~same).any(axis=2).ravel())[0])
            raise self.fault(f"{name}: threads of one warp name different masks", line, lane)

    def shuffle(
        self, name: str, members: Value, value: Value, by: Value, mask: Mask, line: int
    ) -> Value:
        """The value of another thread of the warp."""
        self.members(name, members, mask, line)
        by = np.broadcast_to(by, self.count).astype(np.int64)
        lane = self.lane.astype(np.int64)
        match name:
            case "shfl_sync":
                source = by & 31
            case "shfl_xor_sync":
                source = lane ^ by
            case "shfl_up_sync":
                source = np.where(by <= lane, lane - by, lane)
            case _:
                source = np.where(lane + by < 32, lane + by, lane)
        place = self.all - lane + (source & 31)
        if not (mask is True and not isinstance(members, np.ndarray)):
            self.sources(name, members, source, place, mask, line)
        return np.broadcast_to(value, self.count)[place]

    def mma(self, name: str, values: tuple[Value, ...], mask: Mask, line: int) -> tuple[Value, ...]:
        """A product of whole warps."""
        here = self.array(mask).reshape(-1, 32)
        missing = here.any(axis=1, keepdims=True) & ~here
        self._missing(
            f"others of its warp are at {name}, which takes all 32", line, missing.ravel()
        )
        words = [np.broadcast_to(v, self.count).reshape(-1, 32) for v in values]
        return tuple(c.ravel() for c in multiply_add(name, words))

    def sources(
        self, name: str, members: Value, source: Lane, place: Lane, mask: Mask, line: int
    ) -> None:
        """Looks whether those who are read from take part."""
        here = self.array(mask)
        bits = np.broadcast_to(members, self.count).astype(np.int64)
        bad = here & (~here[place] | ((bits >> (source & 31) & 1) == 0))
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            what = f"{name} reads lane {source[first] & 31}, which takes no part"
            raise self.fault(what, line, first)

    def vote(self, name: str, members: Value, condition: Value, mask: Mask, line: int) -> Value:
        """What the warp's threads say together."""
        self.members(name, members, mask, line)
        bits = np.broadcast_to(members, self.count).astype(np.int64).reshape(-1, 32)
        holds = np.broadcast_to(condition, self.count) & self.array(mask)
        ballots = (holds.reshape(-1, 32) << _WARP).sum(axis=1)[:, None] & bits
        there = (self.array(mask).reshape(-1, 32) << _WARP).sum(axis=1)[:, None] & bits
        match name:
            case "ballot_sync":
                return ballots.astype(np.uint32).ravel()
            case "any_sync":
                return (ballots != 0).ravel()
            case _:
                return (ballots == there).ravel()
