"""The public functions: each against NumPy, eagerly and traced; documented, annotated, promoting
as it should.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

import numpy as np
import pytest
from api_cases import ELEMENTWISE, REDUCTIONS, Case
from api_cases_array import CREATION, EINSUM, INDEXING, LINALG, SHAPES

import weft as wf
from weft.ir.interpreter.evaluate import interpret

CASES = ELEMENTWISE + REDUCTIONS + CREATION + SHAPES + INDEXING + LINALG + EINSUM

#: Functions that have no row in the table, and where they are tested instead.
ELSEWHERE = {
    "argwhere": "below", "boolean_mask": "below", "nonzero": "below", "unique_all": "below",
    "unique_counts": "below", "unique_inverse": "below", "unique_values": "below",
    **dict.fromkeys(
        ["dynamic_partition", "dynamic_stitch", "ensure_shape", "unique", "unique_with_counts"],
        "test_dynamic_ops"),
    **dict.fromkeys(["add_to_collection", "add_to_collections", "get_collection",
                     "get_collection_ref"], "test_operations"),
    "from_dlpack": "below", "to_device": "test_device_arrays",
    "transfer_guard": "test_device_arrays", "set_transfer_guard": "test_device_arrays",
    **dict.fromkeys(["__array_namespace_info__", "broadcast_shapes", "isin"],
                    "test_array_api_names"),
    **dict.fromkeys(
        ["add_n", "batch_gather", "bincount", "cummax", "cummin", "digitize", "histogram",
         "histogram_fixed_width", "invert_permutation", "logcumsumexp", "median", "nanmax",
         "nanmean", "nanmin", "nansum", "percentile", "quantile", "ravel_multi_index",
         "unravel_index"],
        "test_statistics"),
    "confusion_matrix": "test_metrics",
    "can_cast": "below", "finfo": "below", "iinfo": "below", "isdtype": "below",
    "result_type": "below",
    "clip_by_global_norm": "test_train", "clip_by_norm": "test_train",
    "global_norm": "test_train", "random_normal": "test_random", "random_shuffle": "test_random",
    "random_uniform": "test_random", "set_random_seed": "test_random",
    "truncated_normal": "test_random",
    "get_num_threads": "test_pool", "set_num_threads": "test_pool", "bench": "test_bench",
    "colocate_with": "test_device_scopes", "device": "test_device_scopes",
    "bfloat16_transfer": "test_bfloat16_transfer", "devices": "test_placement_gpu",
    "create_partitioned_variables": "test_replica_devices",
    "py_function": "test_py_function", "register_gradient": "test_extend",
    "register_kernel": "test_extend", "register_op": "test_extend",
    "elementwise": "test_elementwise", "reducer": "test_reducer",
    "record": "test_record", "replay": "test_record",
    "export": "test_bundle", "load": "test_bundle",
    **dict.fromkeys(
        ["assert_all_close", "assert_equal", "assert_finite", "assert_greater",
         "assert_greater_equal", "assert_less", "assert_less_equal", "assert_non_negative",
         "assert_not_equal", "assert_positive", "assert_shape", "check", "debug_callback", "print",
         "tap"],
        "test_debug"),
    "shard_map": "test_shard_map", "data_parallel": "test_shard_map",
    "chrome_trace": "test_session_trace", "register_function": "test_registered_functions",
    **dict.fromkeys(
        ["enter", "exit", "loop_cond", "merge", "next_iteration", "switch"], "test_switch_merge"),
    **dict.fromkeys(
        ["assert_variables_initialized", "assign", "assign_add", "assign_sub", "count_up_to",
         "is_variable_initialized", "report_uninitialized_variables", "scatter_add", "scatter_sub",
         "scatter_update"],
        "test_state_ops"),
    **dict.fromkeys(
        ["as_string", "string_join", "string_length", "string_split", "string_to_hash_bucket",
         "string_to_hash_bucket_fast", "string_to_number", "substr"],
        "test_strings"),
    **dict.fromkeys(
        ["Assert", "Print", "decode_csv", "decode_image", "decode_jpeg", "decode_png", "decode_raw",
         "matching_files", "parse_example", "parse_single_example", "read_file", "write_file"],
        "test_file_ops"),
    "local_variables_initializer": "test_input_producers",
    **dict.fromkeys(
        ["sparse_add", "sparse_concat", "sparse_fill_empty_rows", "sparse_maximum",
         "sparse_minimum", "sparse_placeholder",
         "sparse_reduce_max", "sparse_reduce_sum", "sparse_reorder", "sparse_reset_shape",
         "sparse_reshape", "sparse_retain", "sparse_slice", "sparse_softmax",
         "sparse_tensor_dense_matmul", "sparse_tensor_to_dense", "sparse_to_dense",
         "sparse_transpose"],
        "test_sparse_tensor"),
    "get_default_session": "test_session_trace", "import_graph_def": "test_graph_import",
    **dict.fromkeys(
        ["container", "get_variable", "get_variable_scope", "variable_scope"],
        "test_variable_sharing"),
    **dict.fromkeys(
        ["case", "cond", "foldl", "foldr", "fori_loop", "map_fn", "scan", "switch_case",
         "while_loop"],
        "test_control_flow"),
    **dict.fromkeys(
        ["vmap", "jvp", "linearize", "hvp", "jacfwd", "jacrev", "hessian", "checkpoint",
         "associative_scan"],
        "test_transforms"),
    **dict.fromkeys(
        ["compile", "grad", "value_and_grad", "gradients", "vjp", "custom_gradient",
         "control_dependencies", "get_default_graph", "global_variables", "group", "no_op",
         "global_variables_initializer", "initialize_all_variables", "name_scope", "name_tensor",
         "placeholder", "reset_default_graph", "trainable_variables", "variables_initializer",
         "register_pytree", "tree_leaves", "tree_map"],
        "test_frontend"),
}  # fmt: skip


def flat(value: Any) -> list[np.ndarray[Any, Any]]:
    """The arrays in a result."""
    if isinstance(value, (list, tuple)):
        return [a for v in value for a in flat(v)]
    return [np.asarray(value)]


def compare(got: Any, expected: Any, tolerance: float) -> None:
    """Same number of arrays, same dtypes and shapes, values within `tolerance` epsilons."""
    left, right = flat(got), flat(expected)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if b.dtype.kind not in "fc":
            np.testing.assert_array_equal(a, b)
            continue
        eps = np.finfo(b.dtype).eps
        scale = np.max(np.abs(b), where=np.isfinite(b), initial=0.0)
        np.testing.assert_allclose(a, b, rtol=tolerance * eps, atol=tolerance * eps * scale)


def dropped_warnings(case: Case) -> Any:
    with np.errstate(all="ignore"):
        return case.reference(*case.inputs)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_against_numpy(case: Case) -> None:
    """Eager, and traced then run by the interpreter."""
    expected = dropped_warnings(case)
    compare(case.call(*case.inputs), expected, case.tolerance)
    graph = wf.compile(lambda *xs: case.call(*xs)).trace(*case.inputs)
    compare(interpret(graph, list(case.inputs)), expected, case.tolerance)


def public_functions() -> dict[str, Any]:
    found = {n: getattr(wf, n) for n in [*wf.__all__, *wf.tf1.__all__]}
    return {n: f for n, f in found.items() if isinstance(f, types.FunctionType)}


@pytest.mark.share(27)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_compiled_against_numpy(case: Case) -> None:
    """As native code; the bound is wider because sums may be added up in another order."""
    function = wf.compile(lambda *xs: case.call(*xs))
    compare(function(*case.inputs), dropped_warnings(case), max(case.tolerance, 64))


def test_from_dlpack() -> None:
    x = np.arange(6, dtype=np.int16).reshape(2, 3)
    got = wf.from_dlpack(x)
    assert got.dtype is wf.int16
    np.testing.assert_array_equal(got, x)
    np.testing.assert_array_equal(np.from_dlpack(wf.asarray(x)), x)


def test_every_function_has_a_case() -> None:
    tested = {c.function for c in CASES}
    missing = set(public_functions()) - tested - set(ELSEWHERE)
    assert not missing, f"add cases for {sorted(missing)}"
    assert not tested & set(ELSEWHERE)


def test_there_are_many() -> None:
    assert len({c.function for c in CASES}) >= 130


def test_all_names_exist_and_are_sorted() -> None:
    assert sorted(wf.__all__) == list(wf.__all__)
    assert len(set(wf.__all__)) == len(wf.__all__)
    for name in wf.__all__:
        assert hasattr(wf, name), name


NAMESPACES = [wf, wf.nn, wf.random, wf.train, wf.linalg]
FUNCTIONS = sorted(
    {(f.__module__, f.__name__): f for ns in NAMESPACES for f in vars(ns).values()
     if isinstance(f, types.FunctionType)}.items()
)  # fmt: skip


@pytest.mark.parametrize("function", [f for _, f in FUNCTIONS], ids=[n for (_, n), _ in FUNCTIONS])
def test_documented_and_annotated(function: Any) -> None:
    assert function.__doc__
    assert function.__doc__.strip()
    signature = inspect.signature(function)
    bare = [n for n, p in signature.parameters.items() if p.annotation is inspect.Parameter.empty]
    assert not bare
    assert signature.return_annotation is not inspect.Signature.empty


@pytest.mark.parametrize("value", [2.0, [1.0, 2.0], np.float64([1, 2]), wf.asarray([1.0, 2.0])])
def test_takes_what_looks_like_a_tensor(value: Any) -> None:
    expected = np.exp(np.asarray(value)).sum()
    assert float(wf.sum(wf.exp(value))) == pytest.approx(float(expected), rel=1e-6)


def test_takes_variables() -> None:
    v = wf.Variable([1.0, 4.0])
    np.testing.assert_array_equal(wf.sqrt(v), [1, 2])
    np.testing.assert_array_equal(wf.concat([v, [9.0]]), [1, 4, 9])
    np.testing.assert_array_equal(v @ v, 17)


# ------------------------------------------------------------------------------------- promotion
@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (np.int8(1), np.uint8(1), "int16"),
        (np.int32(1), np.float32(1), "float32"),
        (np.float16(1), 2, "float16"),
        (np.float16(1), 2.5, "float16"),
        (np.float32(1), 2j, "complex64"),
        (np.uint8(1), 2.5, "float32"),
        (np.bool_(1), 2, "int64"),
        (np.bool_(1), np.int16(1), "int16"),
        (np.float32(1), np.complex128(1), "complex128"),
        (1, 2, "int64"),
    ],
)
def test_promotion(a: Any, b: Any, expected: str) -> None:
    assert wf.add(np.asarray(a) if not isinstance(a, int) else a, b).dtype.name == expected
    assert wf.multiply(b, a).dtype.name == expected
    assert wf.result_type(a, b).name == expected


def test_weak_scalars_keep_their_precision() -> None:
    x = np.array([1.0])
    third = wf.divide(1.0, 3.0)
    assert third.weak
    np.testing.assert_array_equal(third * x, [1 / 3])
    assert (third * np.float32([1])).dtype is wf.float32
    assert not wf.asarray(third).weak
    assert wf.asarray(third).dtype is wf.float32


def test_scalars_that_do_not_fit_are_refused() -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match="300 does not fit uint8"):
        wf.add(np.uint8([1]), 300)
    with pytest.raises(
        wf.errors.TypeRuleError, match=r"wf\.add.*no common dtype of uint64 and int64"
    ):
        wf.add(np.uint64([1]), np.int64([1]))
    with pytest.raises(wf.errors.TypeRuleError, match=r"string"):
        wf.add(np.asarray(["a"]), 1)


def test_errors_name_function_and_line() -> None:
    with pytest.raises(wf.errors.InvalidArgumentError) as error:
        wf.sum(np.ones((2, 3)), axis=2)  # this line
    text = str(error.value)
    assert "wf.sum: axis 2 is out of range for a tensor of rank 2" in text
    assert "# this line" in text
    with pytest.raises(
        wf.errors.ShapeError, match=r"wf.add: shapes \[2,3\], \[4\] do not broadcast"
    ):
        wf.add(np.ones((2, 3)), np.ones(4))
    with pytest.raises(wf.errors.ShapeError, match="3 columns, 2 rows"):
        wf.matmul(np.ones((2, 3)), np.ones((2, 3)))
    with pytest.raises(wf.errors.ShapeError, match="cannot tell the -1"):
        wf.reshape(np.ones(6), (4, -1))


WRONG: dict[str, Any] = {
    "reshape two -1": lambda x: wf.reshape(x, (-1, -1)),
    "permute twice": lambda x: wf.permute_dims(x, (0, 0)),
    "squeeze 3": lambda x: wf.squeeze(x, 0),
    "expand far": lambda x: wf.expand_dims(x, 5),
    "concat none": lambda x: wf.concat([]),
    "concat rank": lambda x: wf.concat([x, x[0]]),
    "stack shapes": lambda x: wf.stack([x, x[0]]),
    "split uneven": lambda x: wf.split(x, 2),
    "split sizes": lambda x: wf.split(x, [1, 1]),
    "roll shifts": lambda x: wf.roll(x, (1, 2), axis=0),
    "pad negative": lambda x: wf.pad(x, -1),
    "pad mode": lambda x: wf.pad(x, 1, "wrap"),
    "pad reflect": lambda x: wf.pad(x, 3, "reflect"),
    "repeat": lambda x: wf.repeat(x, [1, 2], axis=0),
    "tile": lambda x: wf.tile(x, -1),
    "einsum terms": lambda x: wf.einsum("ij,jk", x),
    "einsum rank": lambda x: wf.einsum("ijk->k", x),
    "einsum sizes": lambda x: wf.einsum("ij,jk", x, x),
    "einsum output": lambda x: wf.einsum("ij->k", x),
    "einsum lists": lambda x: wf.einsum(x, [0, 1], [1, 0]),
    "einsum bytes": lambda x: wf.einsum(b"ij", x),
    "einsum None": lambda x: wf.einsum(None, x),
    "matmul scalar": lambda x: wf.matmul(x, 2.0),
    "tensordot": lambda x: wf.tensordot(x, x, axes=1),
    "tensordot one": lambda x: wf.tensordot(x, x, axes=(0,)),
    "vecdot": lambda x: wf.vecdot(x, x, axis=0),
    "vecdot None": lambda x: wf.vecdot(x, x, axis=None),
    "vecdot of a scalar": lambda x: wf.vecdot(x, 1.0),
    "norm ord": lambda x: wf.linalg.vector_norm(x, ord="fro"),
    "dropout rng": lambda x: wf.nn.dropout(x, rng=3),
    "scalar logits": lambda x: wf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=0, logits=x[0, 0]
    ),
    "cross": lambda x: wf.cross(x, x),
    "diag": lambda x: wf.diag(x[None]),
    "arange step": lambda x: wf.arange(0, 3, 0),
    "linspace": lambda x: wf.linspace(0, 1, -1),
    "linspace ends": lambda x: wf.linspace(x, 1, 3),
    "full": lambda x: wf.full((3,), x),
    "zeros": lambda x: wf.zeros((-1,)),
    "top_k": lambda x: wf.top_k(x, 9),
    "searchsorted": lambda x: wf.searchsorted(x, 1.0),
    "sum twice": lambda x: wf.sum(x, axis=(0, -2)),
    "axis float": lambda x: wf.sum(x, axis=0.5),
    "cumulative": lambda x: wf.cumulative_sum(x),
    "max empty": lambda x: wf.max(x[:0]),
    "take axis": lambda x: wf.take(x, 0),
    "take dtype": lambda x: wf.take(x, 0.5, axis=0),
    "take bounds": lambda x: wf.take(x, 7, axis=0),
    "scatter": lambda x: wf.scatter_nd_add(x, np.zeros((2, 3), int), x),
    "one_hot": lambda x: wf.one_hot(x, 3),
    "bitcast": lambda x: wf.bitcast(x, wf.int32),
    "dtype": lambda x: wf.astype(x, "float23"),
    "broadcast_to": lambda x: wf.broadcast_to(x, (3, 5)),
    "meshgrid": lambda x: wf.meshgrid(x, indexing="xyz"),
    "add bool": lambda x: wf.add(x > 0, x > 0),
    "less complex": lambda x: wf.less(x, 1j),
    "bitwise float": lambda x: wf.bitwise_and(x, x),
    "matrix_norm": lambda x: wf.linalg.matrix_norm(x, ord=3),
    "matrix_power": lambda x: wf.linalg.matrix_power(x, 2),
}


@pytest.mark.parametrize(
    ("name", "traced"),
    # a trace does not know values: an index out of bounds is found when the step runs
    [(n, t) for n in WRONG for t in (False, True) if (n, t) != ("take bounds", True)],
)
def test_wrong_arguments_are_refused_at_the_users_line(name: str, traced: bool) -> None:
    x = wf.asarray(np.ones((3, 4)))
    with pytest.raises(wf.errors.WeftError) as error:
        wf.compile(lambda a: WRONG[name](a)).trace(x) if traced else WRONG[name](x)
    assert error.value.locations, str(error.value)
    assert error.value.locations[0].file == __file__, str(error.value)


# ------------------------------------------------------------------------------ dynamic, dtype info
def test_dynamic_shapes() -> None:
    x = np.array([[3, 0, 3], [0, 1, 3]])
    for got, expected in zip(wf.nonzero(x), np.nonzero(x), strict=True):
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(wf.argwhere(x), np.argwhere(x))
    np.testing.assert_array_equal(wf.boolean_mask(x, x > 0), x[x > 0])
    np.testing.assert_array_equal(wf.unique_values(x), [0, 1, 3])
    np.testing.assert_array_equal(wf.unique_counts(x).counts, [2, 1, 3])
    values, inverse = wf.unique_inverse(x)
    np.testing.assert_array_equal(np.asarray(values)[np.asarray(inverse)], x)
    every = wf.unique_all(x)
    np.testing.assert_array_equal(x.ravel()[np.asarray(every.indices)], every.values)


def test_dtype_information() -> None:
    assert wf.finfo(wf.bfloat16).eps == 2**-7
    assert wf.finfo(np.complex64(1)).max == np.finfo(np.float32).max
    assert (wf.iinfo("int8").min, wf.iinfo(wf.uint16).max) == (-128, 65535)
    assert wf.isdtype(wf.float16, "real floating")
    assert wf.isdtype(wf.uint8, ("bool", "integral"))
    assert wf.isdtype(wf.bool, "bool")
    assert not wf.isdtype(wf.int8, "unsigned integer")
    assert wf.can_cast(wf.int8, wf.int16)
    assert not wf.can_cast(wf.float64, wf.float32)
    assert wf.result_type(wf.float32, np.float64, 3) is wf.float64
    with pytest.raises(wf.errors.InvalidArgumentError, match="the kinds are"):
        wf.isdtype(wf.int8, "floating")


def test_symbolic_sizes() -> None:
    """In a graph, sizes that are not known flow through reshape, arange, mean and indexing."""
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, (None, 4), "x")
        flat_ = wf.reshape(x, (-1,))
        outs = [
            wf.mean(x), flat_, wf.arange(x.shape[0]), x[1:, ::-1], x[::-1], wf.shape(x), wf.size(x),
            wf.nn.softmax(x), x[-1], wf.one_hot(wf.arange(x.shape[0]), 3),
        ]  # fmt: skip
        session = wf.Session()
        for n in (2, 5):
            v = np.arange(4.0 * n, dtype=np.float32).reshape(n, 4)
            got = session.run(outs, {x: v})
            e = np.exp(v - v.max(1, keepdims=True))
            expected = [
                v.mean(), v.ravel(), np.arange(n), v[1:, ::-1], v[::-1], [n, 4], 4 * n,
                e / e.sum(1, keepdims=True), v[-1], np.eye(n, 3),
            ]  # fmt: skip
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6)
