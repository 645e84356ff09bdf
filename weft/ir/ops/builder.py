"""The builder of graphs: appends an op to a block, with its attributes completed, its result types
inferred by the op's type rule, and the user's source location."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.errors import ShapeError, TypeRuleError, WeftError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import Locations, caller_location
from weft.ir.ops import lookup
from weft.ir.spec import Attrs, AttrValue, complete_attrs
from weft.ir.types import TensorType, Type

MAX_RANK = 64  # NumPy's
MAX_BYTES = 2**63 - 1


def make_op(
    name: str,
    operands: Sequence[Value] = (),
    attrs: Attrs | None = None,
    *,
    regions: Sequence[Block] = (),
    control: Sequence[Value] = (),
    locations: Locations = (),
    device: str = "",
    group: str = "",
) -> Operation:
    """A checked, typed op that is in no block yet.

    Raises NotFoundError for an unknown op, TypeRuleError or ShapeError (with the user's line)
    where the operands or attributes do not fit.
    """
    spec = lookup(name)
    try:
        if spec.arity is not None and len(operands) != spec.arity:
            raise TypeRuleError(f"op '{name}' takes {spec.arity} operands, got {len(operands)}")
        if len(regions) != spec.regions:
            raise TypeRuleError(f"op '{name}' takes {spec.regions} regions, got {len(regions)}")
        full = complete_attrs(name, spec.attrs, attrs or {})
        types = spec.infer([v.type for v in operands], full, regions)
        check_sizes(name, types)
    except WeftError as error:
        raise error.at(locations) from error.__cause__  # what the user's own type rule raised
    return Operation(
        name, operands, full, tuple(types), regions, control, locations, device=device, group=group
    )


def check_sizes(op: str, types: Sequence[Type]) -> None:
    """Refuse results that no NumPy array can hold. Raises ShapeError."""
    for t in types:
        if not isinstance(t, TensorType):
            continue
        if t.rank > MAX_RANK:
            raise ShapeError(
                f"op '{op}' would make an array of {t.rank} dimensions",
                hint=f"NumPy arrays, and so weft's, have at most {MAX_RANK}",
            )
        if t.is_static and t.nbytes > MAX_BYTES:
            raise ShapeError(f"op '{op}' would make a {t}: more bytes than can be addressed")


def remapped(
    op: Operation, mapping: Mapping[Value, Value], control: Sequence[Value] = ()
) -> Operation:
    """`op` on other values, of the same types, with further control operands. What is not in
    `mapping`, or is an argument there, orders nothing any more."""
    after = dict.fromkeys([*(mapping[v] for v in op.control if v in mapping), *control])
    return Operation(
        op.name,
        [mapping[v] for v in op.operands],
        op.attrs,
        [r.type for r in op.results],
        op.regions,
        [v for v in after if v.op is not None],
        op.locations,
        device=op.device,
        group=op.group,
    )


class Builder:
    """Builds one block. `locations` given to `emit` are kept; otherwise the calling user's line
    is noted.
    """

    def __init__(self, arg_types: Sequence[Type] = ()) -> None:
        self.args: list[Value] = [Value(t, None, i) for i, t in enumerate(arg_types)]
        self.ops: list[Operation] = []

    def add_arg(self, type: Type) -> Value:
        """A further block argument."""
        value = Value(type, None, len(self.args))
        self.args.append(value)
        return value

    def emit(
        self,
        name: str,
        operands: Sequence[Value] = (),
        attrs: Attrs | None = None,
        *,
        regions: Sequence[Block] = (),
        control: Sequence[Value] = (),
        locations: Locations | None = None,
        device: str = "",
        group: str = "",
    ) -> tuple[Value, ...]:
        """Append an op and return its results. Errors as `make_op`."""
        where = caller_location() if locations is None else locations
        op = make_op(
            name,
            operands,
            attrs,
            regions=regions,
            control=control,
            locations=where,
            device=device,
            group=group,
        )
        self.ops.append(op)
        return op.results

    def emit1(
        self, name: str, *operands: Value, locations: Locations | None = None, **attrs: AttrValue
    ) -> Value:
        """Append an op with exactly one result and return that."""
        (value,) = self.emit(name, operands, attrs, locations=locations)
        return value

    def clone(
        self, op: Operation, mapping: Mapping[Value, Value], *, reinfer: bool = False
    ) -> tuple[Value, ...]:
        """Append a copy of `op` with its operands mapped (a value not in `mapping` stays
        itself).
        """
        operands = [mapping.get(v, v) for v in op.operands]
        control = tuple(dict.fromkeys(mapping.get(v, v) for v in op.control))
        if reinfer or any(a.type != b.type for a, b in zip(operands, op.operands, strict=True)):
            new = make_op(
                op.name,
                operands,
                op.attrs,
                regions=op.regions,
                control=control,
                locations=op.locations,
            )
        else:
            types = [r.type for r in op.results]
            new = Operation(op.name, operands, op.attrs, types, op.regions, control, op.locations)
        new.device = op.device
        new.group = op.group
        self.ops.append(new)
        return new.results

    def inline(self, block: Block, args: Sequence[Value]) -> tuple[Value, ...]:
        """Append a copy of every op of `block` with its arguments bound to `args`; returns its
        results.
        """
        mapping: dict[Value, Value] = dict(zip(block.args, args, strict=True))
        for op in block.ops:
            mapping.update(zip(op.results, self.clone(op, mapping), strict=True))
        return tuple(mapping[v] for v in block.results)

    def block(self, results: Sequence[Value]) -> Block:
        """The finished block."""
        return Block(tuple(self.args), tuple(self.ops), tuple(results))

    def graph(
        self, name: str, arg_names: Sequence[str], results: Sequence[Value], stage: str = "traced"
    ) -> Graph:
        """The finished block as a graph."""
        return Graph(name, self.block(results), tuple(arg_names), stage)
