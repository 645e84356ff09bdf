"""`wf.tf1`: second names, which programs written for TensorFlow 1 use.

A name is here if there is a first one for the same thing (`cumsum`: `wf.cumulative_sum`; `assign`:
a method of `wf.Variable`; `set_random_seed`: in `wf.random`), or if only such programs need it.
`wf` finds each of them, too, but `dir(wf)` does not show it. Imports: all of `frontend` but
`tools`, each name on its first use."""

# One name for each thing, as in weft/__init__.py.
# fmt: off
# ruff: noqa: I001

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import no_such_name as _no_such_name
from weft.ir.process import load as _load

# Each stands twice: here for readers and type checkers, in _LATER for the interpreter.
if TYPE_CHECKING:
    from weft.frontend.autodiff.aggregation import AggregationMethod
    from weft.frontend.control.branches import (
        case, enter, exit, loop_cond, merge, next_iteration, switch,
    )
    from weft.frontend.control.loops import foldl, foldr
    from weft.frontend.data.readers import FixedLenFeature, VarLenFeature
    from weft.frontend.extend.debug import (
        assert_all_close, assert_equal, assert_greater, assert_greater_equal, assert_less,
        assert_less_equal, assert_non_negative, assert_not_equal, assert_positive, assert_shape,
    )
    from weft.frontend.metrics.functions import confusion_matrix
    from weft.frontend.ops.creation import constant
    from weft.frontend.ops.dynamic import (
        boolean_mask, dynamic_partition, dynamic_stitch, rank, unique, unique_with_counts,
    )
    from weft.frontend.ops.elementwise import add_n, squared_difference
    from weft.frontend.ops.index_arithmetic import (
        batch_gather, invert_permutation, ravel_multi_index, unravel_index,
    )
    from weft.frontend.ops.indexing import (
        gather, gather_nd, scatter_nd, scatter_nd_add, scatter_nd_max, scatter_nd_min,
        scatter_nd_update,
    )
    from weft.frontend.ops.statistics import (
        bincount, digitize, histogram, histogram_fixed_width, median, nanmax, nanmean, nanmin,
        nansum, percentile, quantile,
    )
    from weft.frontend.ops.strings import (
        SparseTensorValue, as_string, decode_raw, string_join, string_length, string_split,
        string_to_hash_bucket, string_to_hash_bucket_fast, string_to_number, substr,
    )
    from weft.frontend.optim.clipping import (
        clip_by_global_norm, clip_by_norm, clip_by_value, global_norm,
    )
    from weft.frontend.queues.accumulators import (
        Barrier, ConditionalAccumulator, SparseConditionalAccumulator, SparseGradient,
    )
    from weft.frontend.queues.files import (
        FixedLengthRecordReader, IdentityReader, ReaderBase, TFRecordReader, TextLineReader,
        WholeFileReader, decode_csv, decode_image, decode_jpeg, decode_png,
        matching_files, parse_example, parse_single_example, read_file, write_file,
    )
    from weft.frontend.queues.host_ops import Assert, Print
    from weft.frontend.queues.inputs import local_variables_initializer
    from weft.frontend.queues.queue import (
        FIFOQueue, PaddingFIFOQueue, PriorityQueue, QueueBase, RandomShuffleQueue,
    )
    from weft.frontend.queues.tables import MutableHashTable
    from weft.frontend.queues.tensor_array import Stack, TensorArray
    from weft.frontend.random.generator import (
        random_normal, random_shuffle, random_uniform, set_random_seed, truncated_normal,
    )
    from weft.frontend.session.graph import (
        GraphKeys, add_to_collection, add_to_collections, get_collection, get_collection_ref,
        get_default_graph, import_graph_def, reset_default_graph,
    )
    from weft.frontend.session.growth import GraphGrowthWarning
    from weft.frontend.session.session import InteractiveSession, get_default_session
    from weft.frontend.session.tf_names import (
        assert_variables_initialized, assign, assign_add, assign_sub, cast, count_up_to, cummax,
        cummin, cumprod, cumsum, fill, identity, is_variable_initialized, logcumsumexp,
        reduce_all, reduce_any, reduce_logsumexp,
        reduce_max, reduce_mean, reduce_min, reduce_prod, reduce_sum,
        report_uninitialized_variables, scatter_add, scatter_sub, scatter_update,
    )
    from weft.frontend.session.variables import (
        AUTO_REUSE, VariableScope, get_variable, get_variable_scope, global_variables,
        initialize_all_variables, trainable_variables, variable_scope, variables_initializer,
    )
    from weft.frontend.session.sparse_values import sparse_placeholder
    from weft.frontend.sparse.sparse_tensor import SparseTensor
    from weft.frontend.sparse.tf_names import (
        sparse_add, sparse_concat, sparse_fill_empty_rows, sparse_maximum, sparse_minimum,
        sparse_reduce_max, sparse_reduce_sum, sparse_reorder, sparse_reset_shape, sparse_reshape,
        sparse_retain, sparse_slice, sparse_softmax, sparse_tensor_dense_matmul,
        sparse_tensor_to_dense, sparse_to_dense, sparse_transpose,
    )
    from weft.frontend.state.resources import container
    from weft.frontend.state.scopes import colocate_with
    from weft.frontend.train.parameter_servers import create_partitioned_variables
    from weft.ir.dtypes import bool_

_LATER = {
    "weft.frontend.autodiff.aggregation": "AggregationMethod",
    "weft.frontend.control.branches":
        "case enter exit loop_cond merge next_iteration switch",
    "weft.frontend.control.loops": "foldl foldr",
    "weft.frontend.data.readers": "FixedLenFeature VarLenFeature",
    "weft.frontend.extend.debug":
        "assert_all_close assert_equal assert_greater assert_greater_equal assert_less "
        "assert_less_equal assert_non_negative assert_not_equal assert_positive assert_shape",
    "weft.frontend.metrics.functions": "confusion_matrix",
    "weft.frontend.ops.creation": "constant",
    "weft.frontend.ops.dynamic":
        "boolean_mask dynamic_partition dynamic_stitch rank unique unique_with_counts",
    "weft.frontend.ops.elementwise": "add_n squared_difference",
    "weft.frontend.ops.index_arithmetic":
        "batch_gather invert_permutation ravel_multi_index unravel_index",
    "weft.frontend.ops.indexing":
        "gather "
        "gather_nd scatter_nd scatter_nd_add scatter_nd_max scatter_nd_min scatter_nd_update",
    "weft.frontend.ops.statistics":
        "bincount digitize histogram histogram_fixed_width median nanmax nanmean nanmin nansum "
        "percentile quantile",
    "weft.frontend.ops.strings":
        "SparseTensorValue as_string decode_raw string_join string_length string_split "
        "string_to_hash_bucket string_to_hash_bucket_fast string_to_number substr",
    "weft.frontend.optim.clipping": "clip_by_global_norm clip_by_norm clip_by_value global_norm",
    "weft.frontend.queues.accumulators":
        "Barrier ConditionalAccumulator SparseConditionalAccumulator SparseGradient",
    "weft.frontend.queues.files":
        "FixedLengthRecordReader TFRecordReader TextLineReader WholeFileReader "
        "IdentityReader ReaderBase decode_csv decode_image decode_jpeg decode_png matching_files "
        "parse_example parse_single_example read_file write_file",
    "weft.frontend.queues.host_ops": "Assert Print",
    "weft.frontend.queues.inputs": "local_variables_initializer",
    "weft.frontend.queues.queue":
        "FIFOQueue PaddingFIFOQueue PriorityQueue QueueBase RandomShuffleQueue",
    "weft.frontend.queues.tables": "MutableHashTable",
    "weft.frontend.queues.tensor_array": "Stack TensorArray",
    "weft.frontend.random.generator":
        "random_normal random_shuffle random_uniform set_random_seed truncated_normal",
    "weft.frontend.session.graph":
        "GraphKeys add_to_collection add_to_collections get_collection get_collection_ref "
        "get_default_graph import_graph_def reset_default_graph",
    "weft.frontend.session.growth": "GraphGrowthWarning",
    "weft.frontend.session.session": "InteractiveSession get_default_session",
    "weft.frontend.session.tf_names":
        "assert_variables_initialized assign assign_add assign_sub cast count_up_to cumprod cumsum "
        "cummax cummin logcumsumexp "
        "fill identity is_variable_initialized reduce_all reduce_any reduce_logsumexp reduce_max "
        "reduce_mean reduce_min reduce_prod reduce_sum report_uninitialized_variables scatter_add "
        "scatter_sub scatter_update",
    "weft.frontend.session.variables":
        "AUTO_REUSE VariableScope get_variable get_variable_scope global_variables "
        "initialize_all_variables trainable_variables variable_scope variables_initializer",
    "weft.frontend.session.sparse_values": "sparse_placeholder",
    "weft.frontend.sparse.sparse_tensor": "SparseTensor",
    "weft.frontend.sparse.tf_names":
        "sparse_add sparse_concat sparse_fill_empty_rows sparse_maximum sparse_minimum "
        "sparse_reduce_max sparse_reduce_sum sparse_reorder sparse_reset_shape sparse_reshape "
        "sparse_retain sparse_slice sparse_softmax sparse_tensor_dense_matmul "
        "sparse_tensor_to_dense sparse_to_dense sparse_transpose",
    "weft.frontend.state.resources": "container",
    "weft.frontend.state.scopes": "colocate_with",
    "weft.frontend.train.parameter_servers": "create_partitioned_variables",
    "weft.ir.dtypes": "bool_",
}
_HOME = {name: module for module, names in _LATER.items() for name in names.split()}

if not TYPE_CHECKING:
    def __getattr__(name: str) -> object:
        """Load what a name stands for. AttributeError for a name that is none."""
        if name not in _HOME:
            raise _no_such_name(__name__, name)
        found = globals()[name] = _load(_HOME[name], name)
        return found

    def __dir__() -> list[str]:
        """All names, those too that are not loaded yet."""
        return sorted({*__all__, *(n for n in globals() if n.startswith("__"))})


__all__ = [
    "AUTO_REUSE", "AggregationMethod", "Assert", "Barrier", "ConditionalAccumulator", "FIFOQueue",
    "FixedLenFeature", "FixedLengthRecordReader", "GraphGrowthWarning", "GraphKeys",
    "IdentityReader", "InteractiveSession", "MutableHashTable",
    "PaddingFIFOQueue", "Print", "PriorityQueue", "QueueBase", "RandomShuffleQueue", "ReaderBase",
    "SparseConditionalAccumulator", "SparseGradient",
    "SparseTensor",
    "SparseTensorValue", "Stack",
    "TFRecordReader", "TensorArray", "TextLineReader", "VarLenFeature", "VariableScope",
    "WholeFileReader", "add_n", "add_to_collection", "add_to_collections", "as_string",
    "assert_all_close", "assert_equal", "assert_greater",
    "assert_greater_equal", "assert_less", "assert_less_equal", "assert_non_negative",
    "assert_not_equal", "assert_positive", "assert_shape", "assert_variables_initialized",
    "assign", "assign_add", "assign_sub", "batch_gather", "bincount", "bool_", "boolean_mask",
    "case", "cast",
    "clip_by_global_norm", "clip_by_norm", "clip_by_value", "colocate_with", "confusion_matrix",
    "constant",
    "container", "count_up_to", "create_partitioned_variables", "cummax", "cummin", "cumprod",
    "cumsum", "decode_csv",
    "decode_image", "decode_jpeg", "decode_png", "decode_raw", "digitize", "dynamic_partition",
    "dynamic_stitch", "enter", "exit", "fill", "foldl", "foldr", "gather",
    "gather_nd", "get_collection", "get_collection_ref", "get_default_graph",
    "get_default_session", "get_variable", "get_variable_scope", "global_norm", "global_variables",
    "histogram", "histogram_fixed_width",
    "identity", "import_graph_def", "initialize_all_variables", "invert_permutation",
    "is_variable_initialized",
    "local_variables_initializer", "logcumsumexp", "loop_cond", "matching_files", "median", "merge",
    "nanmax", "nanmean", "nanmin", "nansum", "next_iteration",
    "parse_example", "parse_single_example", "percentile", "quantile", "random_normal",
    "random_shuffle", "random_uniform",
    "rank", "ravel_multi_index", "read_file", "reduce_all", "reduce_any", "reduce_logsumexp",
    "reduce_max",
    "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum", "report_uninitialized_variables",
    "reset_default_graph", "scatter_add", "scatter_nd", "scatter_nd_add", "scatter_nd_max",
    "scatter_nd_min", "scatter_nd_update", "scatter_sub", "scatter_update", "set_random_seed",
    "sparse_add", "sparse_concat", "sparse_fill_empty_rows", "sparse_maximum",
    "sparse_minimum", "sparse_placeholder", "sparse_reduce_max", "sparse_reduce_sum",
    "sparse_reorder", "sparse_reset_shape", "sparse_reshape", "sparse_retain", "sparse_slice",
    "sparse_softmax", "sparse_tensor_dense_matmul", "sparse_tensor_to_dense", "sparse_to_dense",
    "sparse_transpose",
    "squared_difference", "string_join", "string_length", "string_split", "string_to_hash_bucket",
    "string_to_hash_bucket_fast", "string_to_number", "substr", "switch", "trainable_variables",
    "truncated_normal", "unique", "unique_with_counts", "unravel_index", "variable_scope",
    "variables_initializer",
    "write_file",
]
