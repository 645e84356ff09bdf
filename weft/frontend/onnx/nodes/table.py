"""The table of ops for ONNX: for each op of weft what writes its nodes, or why nothing does.

`BUILDERS` and `REFUSED` together have a row for every op of the table (`ir/ops`); a test asks for
one for each new op. `emit` writes a block, `refusals` finds what cannot be written before that."""

from __future__ import annotations

from collections.abc import Iterable

from weft.frontend.onnx.nodes import (
    control,
    elementwise,
    moves,
    products,
    reductions,
    windows,
)
from weft.frontend.onnx.nodes.graph import GraphWriter, Held, RefusedError
from weft.frontend.onnx.nodes.moves import Builder
from weft.frontend.onnx.nodes.patterns import steps
from weft.ir.dataclass import dataclass
from weft.ir.errors import WeftError
from weft.ir.graph import Block, Graph, Operation
from weft.ir.ops import OPS, REGISTERED
from weft.ir.types import TensorType, TokenType

BUILDERS: dict[str, Builder] = {
    **elementwise.BUILDERS,
    **moves.BUILDERS,
    **products.BUILDERS,
    **reductions.BUILDERS,
    **windows.BUILDERS,
}

_HOST = (
    "it acts on an object of this process: a queue, a table, a reader or a stack",
    "export the part that computes, with what they give as arguments",
)
_EFFECT = (
    "it acts on the host, which no ONNX graph does",
    "leave it out of what is exported",
)
_PYTHON = ("it calls Python", "compute it with ops of weft")
_STATE = (
    "it acts on a variable's state, which an inference graph does not have",
    "read the variable outside, and pass the value",
)
_RANDOM = (
    "ONNX has no generator with these numbers, and an inference graph draws none",
    "pass what is drawn as an argument; wf.nn.Module is exported as after eval(), without dropout",
)
_LINALG = (
    "ONNX has no decomposition of matrices",
    "compute it with NumPy before, and pass the result as an argument",
)
_COMPLEX = ("ONNX has no complex numbers", "compute with real and imaginary parts")
_TEXT = (
    "ONNX has no such operator for strings",
    "do what concerns text before, and pass numbers to the model",
)
_SPARSE = ("ONNX has no sparse products", "pass a dense matrix: wf.sparse.to_dense")
_LATER = ("passes of the compiler make it, later", "export the function, not its optimised graph")
_GRADIENT = ("it is the gradient of another op", "export the inference graph, not the gradient")
_DEVICES = ("it is of several devices", "export the function of one device")
_NO_OPERATOR = (
    "ONNX has no such operator at opset 20 or 23, and no formula of others is as exact",
    "leave it out, or compute it before",
)


def _rows(reason: tuple[str, str], names: str) -> dict[str, tuple[str, str]]:
    return dict.fromkeys(names.split(), reason)


#: Why an op has no form in ONNX, and what to do.
REFUSED: dict[str, tuple[str, str]] = {
    **_rows(
        _HOST,
        "queue enqueue enqueue_many dequeue dequeue_many dequeue_up_to queue_size queue_close "
        "queue_is_closed table table_lookup table_insert table_remove table_export table_import "
        "table_size barrier barrier_insert_many barrier_take_many barrier_take_up_to barrier_close "
        "barrier_ready_size barrier_incomplete_size accumulator sparse_accumulator "
        "accumulator_apply_gradient sparse_accumulator_apply_gradient accumulator_take_gradient "
        "sparse_accumulator_take_gradient accumulator_set_global_step accumulator_num_accumulated "
        "host_stack host_stack_push host_stack_pop host_stack_size host_stack_close reader "
        "reader_read reader_read_up_to reader_num_records_produced "
        "reader_num_work_units_completed reader_reset",
    ),
    **_rows(
        _EFFECT,
        "read_file write_file matching_files decode_csv parse_example decode_image save restore "
        "summary print assert",
    ),
    **_rows(_PYTHON, "py_function debug_callback scalar_function"),
    **_rows(
        _STATE,
        "variable read assign assign_add assign_sub scatter_add scatter_sub scatter_update "
        "read_open assign_open update_open is_initialized assert_initialized report_uninitialized "
        "count_up_to",
    ),
    **_rows(_RANDOM, "random_bits random_fold_in"),
    **_rows(_LINALG, "cholesky lu lu_solve triangular_solve qr eigh svd eig"),
    **_rows(_COMPLEX, "fft rfft irfft"),
    **_rows(
        _TEXT,
        "string_join as_string string_to_number string_to_hash_bucket string_to_hash_bucket_fast "
        "string_to_hash_bucket_strong string_split string_split_rows string_length "
        "string_length_utf8 substr substr_utf8 decode_raw string_case string_strip regex_replace "
        "regex_full_match unicode_transcode unicode_decode unicode_encode string_reduce_join "
        "string_format encode_base64 decode_base64 decode_json",
    ),
    **_rows(_SPARSE, "sparse_matmul sparse_pairs sparse_pairs_padded"),
    **_rows(
        _LATER,
        "fused unrolled attention attention_grad switch merge enter exit next_iteration loop_cond "
        "stack_new stack_push stack_pop stack_add arena_push arena_pop arena_add send recv "
        "custom_rule",
    ),
    **_rows(_GRADIENT, "window_place"),
    **_rows(
        _DEVICES,
        "psum pmax pmin all_gather psum_scatter all_to_all ppermute axis_index exchange",
    ),
    **_rows(_NO_OPERATOR, "bitcast nextafter lgamma digamma erfinv erfc"),
}
#: State that becomes values before nodes are written (`passes/functional_state.py`).
_BECOMES_VALUES = frozenset(
    {"variable", "read", "assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub",
     "scatter_update"}
)  # fmt: skip
#: What stands for the results of an op that cannot be written.
_NONE = "?"
#: Of effects that are no op's business: orders.
_NOTHING = frozenset({"group"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """An op that has no form in ONNX, why, and what to do."""

    op: Operation
    why: str
    hint: str

    def __str__(self) -> str:
        place = self.op.locations[0].describe() if self.op.locations else "no place is known"
        return f"op '{self.op.name}' ({place}): {self.why}"


def _refusal(op: Operation) -> Refusal | None:
    if op.name in REFUSED:
        return Refusal(op, *REFUSED[op.name])
    if op.name in REGISTERED:
        return Refusal(op, "it is an op of your own", "compute it with ops of weft")
    values = [*op.operands, *op.results]
    if any(isinstance(v.type, TensorType) and v.type.dtype.is_complex for v in values):
        return Refusal(op, *_COMPLEX)
    return None


def traced_refusals(graph: Graph) -> list[Refusal]:
    """What of a graph that was traced no ONNX graph holds: all if there is something that acts on
    the host or on state; else none, as the rest may yet be folded."""
    found = [(op, _refusal(op)) for op in graph.walk() if op.name not in _BECOMES_VALUES]
    acts = {"host", "handle", "reads_state", "writes_state", "no_dce"}
    if not any(one and OPS[op.name].traits & acts for op, one in found):
        return []
    return _each_once(one for _, one in found if one)


def _each_once(refusals: Iterable[Refusal]) -> list[Refusal]:
    """One of those that read the same."""
    return list({str(one): one for one in refusals}.values())


def emit(writer: GraphWriter, block: Block) -> list[Refusal]:
    """Write the ops of a block, whose arguments are bound; those that could not be."""
    found: list[Refusal] = []

    def inner(writer: GraphWriter, block: Block) -> None:
        found.extend(emit(writer, block))

    for op, pattern in steps(block, writer):
        if op.name in _NOTHING or any(isinstance(v.type, TokenType) for v in op.results):
            continue
        writer.at(op)
        try:
            if (refusal := _refusal(op)) is not None:
                raise RefusedError(refusal.why, refusal.hint)
            reads = op.operands if pattern is None else pattern.reads
            if any(writer.held[v].name == _NONE for v in reads):
                inside = [_refusal(o) for region in op.regions for o in region.walk()]
                found.extend(one for one in inside if one is not None)
                _bind_anything(writer, op)
            elif pattern is not None:
                pattern.write(writer)
            elif op.name in control.BUILDERS:
                control.BUILDERS[op.name](writer, op, inner)
            else:
                BUILDERS[op.name](writer, op)
        except RefusedError as error:
            found.append(Refusal(op, error.why, error.hint))
            _bind_anything(writer, op)
        except WeftError as error:
            found.append(Refusal(op, error.what, error.hint or ""))
            _bind_anything(writer, op)
    return _each_once(found)


def _bind_anything(writer: GraphWriter, op: Operation) -> None:
    """Bind the results of an op that cannot be written, so that those after it are looked at."""
    for value in op.results:
        shape = value.type.shape if isinstance(value.type, TensorType) else ()
        writer.held[value] = Held(_NONE, shape)
