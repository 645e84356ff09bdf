"""weft, a dataflow-graph compiler: decorate a model function, run it as one native step.

Arrays follow the Python array API standard; what TensorFlow 1 named keeps its name. See README.md.

What an op on arrays needs is loaded here; everything else with the first use of its name (PEP 562).
"""

# One name for each thing: wrapped lines are easier to read here than one name on each.
# fmt: off
# ruff: noqa: I001

from __future__ import annotations

import math as _math
import sys as _sys
from typing import TYPE_CHECKING

from weft.ir.process import load as _load  # first: it notes the time
from weft.ir.process import collector_paused as _collector_paused

# modules are kept: Python's collector would look through their objects time and again
with _collector_paused(old=True):
    # methods: imported for its effect, the operators of tensors call the functions below
    from weft.frontend import linalg
    from weft.frontend.ops import methods as _methods  # noqa: F401
    from weft.frontend.ops.promotion import (
        FloatInfo, IntegerInfo, can_cast, finfo, iinfo, isdtype, result_type,
    )
    from weft.frontend.ops.elementwise import (
        abs, acos, acosh, add, asin, asinh, astype, atan, atan2, atanh, bitcast, bitwise_and,
        bitwise_invert, bitwise_left_shift, bitwise_or, bitwise_right_shift, bitwise_xor, cbrt,
        ceil, clip, conj, copysign, cos, cosh, deg2rad, digamma, divide, equal, erf, erfc, erfinv,
        exp, exp2, expm1, floor, floor_divide, fma, greater, greater_equal, hypot, imag, isclose,
        isfinite, isinf, isnan, less, less_equal, lgamma, log, log10, log1p, log2, logaddexp,
        logical_and, logical_not, logical_or, logical_xor, maximum, minimum, multiply, nan_to_num,
        negative, nextafter, not_equal, positive, pow, rad2deg, real, reciprocal, remainder, round,
        rsqrt, sigmoid, sign, signbit, sin, sinc, sinh, sqrt, square, squared_difference, subtract,
        tan, tanh, trunc, where, xlog1py, xlogy,
    )
    from weft.frontend.ops.creation import (
        arange, asarray, constant, empty, empty_like, eye, from_dlpack, full, full_like, iota,
        linspace, meshgrid, one_hot, ones, ones_like, tril, triu, zeros, zeros_like,
    )
    from weft.frontend.ops.dynamic import (
        Unique, UniqueAll, UniqueCounts, UniqueInverse, UniqueWithCounts, argwhere, boolean_mask,
        dynamic_partition, dynamic_stitch, ensure_shape, nonzero, unique, unique_all, unique_counts,
        unique_inverse, unique_values, unique_with_counts,
    )
    from weft.frontend.ops.linalg import (
        Term, cross, diag, diagonal, dot, einsum, inner, matmul, matrix_norm, matrix_power, outer,
        tensordot, trace, vecdot,
    )
    from weft.frontend.ops.indexing import (
        gather, gather_nd, scatter_nd, scatter_nd_add, scatter_nd_max, scatter_nd_min,
        scatter_nd_update, take, take_along_axis,
    )
    from weft.frontend.ops.reduction import (
        all, any, argmax, argmin, count_nonzero, cumulative_logsumexp, cumulative_max,
        cumulative_min, cumulative_prod, cumulative_sum, logsumexp, max, mean, min, prod,
        segment_max, segment_mean, segment_min, segment_sum, std, sum, var, vector_norm,
    )
    from weft.frontend.ops.manipulation import (
        broadcast_arrays, broadcast_to, concat, diff, expand_dims, flatten, flip, matrix_transpose,
        moveaxis, pad, permute_dims, rank, repeat, reshape, roll, rot90, shape, size, split,
        squeeze, stack, swapaxes, tile, transpose, unstack,
    )
    from weft.frontend.ops.sort import TopK, argsort, searchsorted, sort, top_k
    from weft.frontend.core.pytree import register_pytree, tree_leaves, tree_map
    from weft.frontend.core.tensor import Tensor
    from weft.ir import errors
    from weft.ir.dtypes import (
        DType, bfloat16, bool_, complex128, complex64, float16, float32, float64, int16, int32,
        int64, int8, string, uint16, uint32, uint64, uint8,
    )
    from weft.ir.types import TensorType

# ---------------------------------------------------------------- names that are loaded when used
# Each stands twice: here for readers and type checkers, in _LATER for the interpreter.
if TYPE_CHECKING:
    from weft.frontend import data, lookup, nn, random, train
    from weft.frontend.autodiff.gradients import (
        custom_gradient, grad, gradients, jvp, stop_gradient, value_and_grad, vjp,
    )
    from weft.frontend.control.branches import case, cond, switch_case
    from weft.frontend.control.loops import fori_loop, while_loop
    from weft.frontend.control.primitives import (
        enter, exit, loop_cond, merge, next_iteration, switch,
    )
    from weft.frontend.control.scan import foldl, foldr, map_fn, scan
    from weft.frontend.tools.bench_report import bench
    from weft.frontend.state.scopes import (
        bfloat16_transfer, colocate_with, control_dependencies, device, group, name_scope, no_op,
    )
    from weft.frontend.core.device_array import (
        DeviceArray, set_transfer_guard, to_device, transfer_guard,
    )
    from weft.runtime.device.backends.info import DeviceInfo
    from weft.frontend.tools.devices import devices
    from weft.frontend.train.parameter_servers import create_partitioned_variables
    from weft.ir.device import DeviceSpec
    from weft.frontend.extend.ops import register_gradient, register_kernel, register_op
    from weft.frontend.extend.py_function import py_function, register_function
    from weft.frontend.autodiff.indexed_slices import IndexedSlices
    from weft.frontend.compile.decorator import compile
    from weft.frontend.compile.function import CompiledFunction, DeviceWarning
    from weft.frontend.session.graph import (
        Graph, get_default_graph, import_graph_def, name_tensor, placeholder, reset_default_graph,
    )
    from weft.frontend.session.variables import (
        AUTO_REUSE, VariableScope, get_variable, get_variable_scope, global_variables,
        global_variables_initializer, initialize_all_variables, trainable_variables, variable_scope,
        variables_initializer,
    )
    from weft.frontend.queues.accumulators import (
        Barrier, ConditionalAccumulator, SparseConditionalAccumulator, SparseGradient,
    )
    from weft.frontend.queues.tensor_array import Stack, TensorArray
    from weft.frontend.queues.queue import (
        FIFOQueue, PaddingFIFOQueue, PriorityQueue, QueueBase, RandomShuffleQueue,
    )
    from weft.frontend.queues.tables import MutableHashTable
    from weft.frontend.random.generator import (
        random_normal, random_shuffle, random_uniform, set_random_seed, truncated_normal,
    )
    from weft.frontend.session.session import (
        GraphGrowthWarning, InteractiveSession, Session, get_default_session,
    )
    from weft.frontend.session.run import RunMetadata, RunOptions, chrome_trace
    from weft.frontend.compile.specializations import RecompileWarning
    from weft.frontend.data.readers import FixedLenFeature, VarLenFeature
    from weft.frontend.queues.files import (
        FixedLengthRecordReader, IdentityReader, ReaderBase, TFRecordReader, TextLineReader,
        WholeFileReader, decode_csv, decode_image, decode_jpeg, decode_png, matching_files,
        parse_example, parse_single_example, read_file, write_file,
    )
    from weft.frontend.queues.inputs import local_variables_initializer
    from weft.frontend.queues.host_ops import Assert, Print
    from weft.frontend.ops.strings import (
        SparseTensorValue, as_string, decode_raw, string_join, string_length, string_split,
        string_to_hash_bucket, string_to_hash_bucket_fast, string_to_number, substr,
    )
    from weft.frontend.session.tf_names import (
        assert_variables_initialized, assign, assign_add, assign_sub, cast, count_up_to, cumprod,
        cumsum, fill, identity, is_variable_initialized, reduce_all, reduce_any, reduce_logsumexp,
        reduce_max, reduce_mean, reduce_min, reduce_prod, reduce_sum,
        report_uninitialized_variables, scatter_add, scatter_sub, scatter_update,
    )
    from weft.frontend.optim.clipping import (
        clip_by_global_norm, clip_by_norm, clip_by_value, global_norm,
    )
    from weft.frontend.compile.threads import get_num_threads, set_num_threads
    from weft.frontend.state.shared_names import container
    from weft.frontend.state.variable import Variable
    from weft.frontend.core.trace import Effect
    from weft.runtime.resources.cancel import CancelToken

_MODULES = ("data", "lookup", "nn", "random", "train")  # public modules, of weft.frontend
_LATER = {
    "weft.frontend.autodiff.gradients":
        "grad gradients jvp stop_gradient value_and_grad vjp custom_gradient",
    "weft.frontend.control.branches": "case cond switch_case",
    "weft.frontend.control.loops": "fori_loop while_loop",
    "weft.frontend.control.primitives": "enter exit loop_cond merge next_iteration switch",
    "weft.frontend.control.scan": "foldl foldr map_fn scan",
    "weft.frontend.tools.bench_report": "bench",
    "weft.frontend.state.scopes":
        "bfloat16_transfer colocate_with device control_dependencies group name_scope no_op",
    "weft.frontend.core.device_array": "DeviceArray to_device set_transfer_guard transfer_guard",
    "weft.runtime.device.backends.info": "DeviceInfo",
    "weft.frontend.tools.devices": "devices",
    "weft.frontend.train.parameter_servers": "create_partitioned_variables",
    "weft.ir.device": "DeviceSpec",
    "weft.frontend.extend.ops": "register_gradient register_kernel register_op",
    "weft.frontend.extend.py_function": "py_function register_function",
    "weft.frontend.autodiff.indexed_slices": "IndexedSlices",
    "weft.frontend.compile.decorator": "compile",
    "weft.frontend.compile.function": "CompiledFunction DeviceWarning",
    "weft.frontend.session.graph":
        "Graph get_default_graph name_tensor placeholder reset_default_graph import_graph_def",
    "weft.frontend.session.variables":
        "global_variables global_variables_initializer initialize_all_variables "
        "trainable_variables variables_initializer AUTO_REUSE VariableScope get_variable "
        "get_variable_scope variable_scope",
    "weft.frontend.queues.accumulators":
        "ConditionalAccumulator SparseConditionalAccumulator SparseGradient Barrier",
    "weft.frontend.queues.tensor_array": "TensorArray Stack",
    "weft.frontend.queues.queue":
        "QueueBase FIFOQueue PaddingFIFOQueue PriorityQueue RandomShuffleQueue",
    "weft.frontend.queues.tables": "MutableHashTable",
    "weft.frontend.random.generator":
        "random_normal random_shuffle random_uniform set_random_seed truncated_normal",
    "weft.frontend.session.session":
        "get_default_session GraphGrowthWarning InteractiveSession Session",
    "weft.frontend.session.run": "RunMetadata chrome_trace RunOptions",
    "weft.frontend.compile.specializations": "RecompileWarning",
    "weft.frontend.data.readers": "FixedLenFeature VarLenFeature",
    "weft.frontend.queues.files":
        "decode_csv decode_image decode_jpeg decode_png matching_files parse_example "
        "parse_single_example read_file write_file FixedLengthRecordReader IdentityReader "
        "ReaderBase TextLineReader TFRecordReader WholeFileReader",
    "weft.frontend.queues.inputs": "local_variables_initializer",
    "weft.frontend.queues.host_ops": "Assert Print",
    "weft.frontend.ops.strings":
        "SparseTensorValue as_string decode_raw string_join string_length string_split "
        "string_to_hash_bucket string_to_hash_bucket_fast string_to_number substr",
    "weft.frontend.session.tf_names":
        "cast cumprod cumsum fill identity reduce_all reduce_any reduce_logsumexp reduce_max "
        "reduce_mean reduce_min reduce_prod reduce_sum assert_variables_initialized assign "
        "assign_add assign_sub count_up_to is_variable_initialized report_uninitialized_variables "
        "scatter_add scatter_sub scatter_update",
    "weft.frontend.optim.clipping": "clip_by_global_norm clip_by_norm clip_by_value global_norm",
    "weft.frontend.compile.threads": "get_num_threads set_num_threads",
    "weft.frontend.state.shared_names": "container",
    "weft.frontend.state.variable": "Variable",
    "weft.frontend.core.trace": "Effect",
    "weft.runtime.resources.cancel": "CancelToken",
}
_HOME = {name: module for module, names in _LATER.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker knows the names, and what is no name
    def __getattr__(name: str) -> object:
        """Load what a public name stands for. AttributeError for a name that is none."""
        if name not in _HOME and name not in _MODULES:
            raise AttributeError(f"module 'weft' has no attribute {name!r}",
                                 name=name, obj=_sys.modules[__name__])
        home = _HOME.get(name)
        found = _load(home, name) if home else _load(f"weft.frontend.{name}")
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        """All names, those too that are not loaded yet."""
        return sorted({*globals(), *_HOME, *_MODULES})

del TYPE_CHECKING  # no name of weft's


# ------------------------------------------------------------------------------------- constants
bool = bool_  # the array API's name

e, inf, nan, pi = _math.e, _math.inf, _math.nan, _math.pi
newaxis = None
__array_api_version__ = "2024.12"

__version__ = "0.1.0"

__all__ = [
    "AUTO_REUSE", "Assert", "Barrier", "CancelToken", "CompiledFunction",
    "ConditionalAccumulator", "DType", "DeviceArray", "DeviceInfo", "DeviceSpec",
    "DeviceWarning", "Effect",
    "FIFOQueue", "FixedLenFeature",
    "FixedLengthRecordReader", "FloatInfo", "Graph", "GraphGrowthWarning", "IdentityReader",
    "IndexedSlices", "IntegerInfo", "InteractiveSession", "MutableHashTable",
    "PaddingFIFOQueue", "Print", "PriorityQueue", "QueueBase", "RandomShuffleQueue",
    "ReaderBase", "RecompileWarning", "RunMetadata", "RunOptions", "Session",
    "SparseConditionalAccumulator", "SparseGradient", "SparseTensorValue", "Stack",
    "TFRecordReader", "Tensor", "TensorArray", "TensorType", "Term", "TextLineReader", "TopK",
    "Unique", "UniqueAll", "UniqueCounts", "UniqueInverse", "UniqueWithCounts", "VarLenFeature",
    "Variable", "VariableScope", "WholeFileReader", "abs", "acos", "acosh", "add", "all", "any",
    "arange", "argmax", "argmin", "argsort", "argwhere", "as_string", "asarray", "asin",
    "asinh", "assert_variables_initialized", "assign", "assign_add", "assign_sub", "astype",
    "atan", "atan2", "atanh", "bench", "bfloat16", "bfloat16_transfer", "bitcast",
    "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "bool", "bool_", "boolean_mask", "broadcast_arrays", "broadcast_to",
    "can_cast", "case", "cast", "cbrt", "ceil", "chrome_trace", "clip", "clip_by_global_norm",
    "clip_by_norm", "clip_by_value", "colocate_with", "compile", "complex128", "complex64",
    "concat", "cond", "conj", "constant", "container", "control_dependencies", "copysign",
    "cos", "cosh", "count_nonzero", "count_up_to", "create_partitioned_variables", "cross",
    "cumprod", "cumsum", "cumulative_logsumexp", "cumulative_max", "cumulative_min",
    "cumulative_prod", "cumulative_sum", "custom_gradient", "data", "decode_csv",
    "decode_image", "decode_jpeg", "decode_png", "decode_raw", "deg2rad", "device", "devices",
    "diag", "diagonal", "diff", "digamma", "divide", "dot", "dynamic_partition", "dynamic_stitch",
    "e",
    "einsum", "empty", "empty_like", "ensure_shape", "enter", "equal", "erf", "erfc", "erfinv",
    "errors", "exit", "exp", "exp2", "expand_dims", "expm1", "eye", "fill", "finfo", "flatten",
    "flip", "float16", "float32", "float64", "floor", "floor_divide", "fma", "foldl", "foldr",
    "fori_loop", "from_dlpack", "full", "full_like", "gather", "gather_nd", "get_default_graph",
    "get_default_session", "get_num_threads", "get_variable", "get_variable_scope",
    "global_norm", "global_variables", "global_variables_initializer", "grad", "gradients",
    "greater", "greater_equal", "group", "hypot", "identity", "iinfo", "imag",
    "import_graph_def", "inf", "initialize_all_variables", "inner", "int16", "int32", "int64",
    "int8", "iota", "is_variable_initialized", "isclose", "isdtype", "isfinite", "isinf",
    "isnan", "jvp", "less", "less_equal", "lgamma", "linalg", "linspace",
    "local_variables_initializer", "log", "log10", "log1p", "log2", "logaddexp", "logical_and",
    "logical_not", "logical_or", "logical_xor", "logsumexp", "lookup", "loop_cond", "map_fn",
    "matching_files", "matmul", "matrix_norm", "matrix_power", "matrix_transpose", "max",
    "maximum", "mean", "merge", "meshgrid", "min", "minimum", "moveaxis", "multiply",
    "name_scope", "name_tensor", "nan", "nan_to_num", "negative", "newaxis", "next_iteration",
    "nextafter", "nn", "no_op", "nonzero", "not_equal", "one_hot", "ones", "ones_like", "outer",
    "pad", "parse_example", "parse_single_example", "permute_dims", "pi", "placeholder",
    "positive", "pow", "prod", "py_function", "rad2deg", "random", "random_normal",
    "random_shuffle", "random_uniform", "rank", "read_file", "real", "reciprocal", "reduce_all",
    "reduce_any", "reduce_logsumexp", "reduce_max", "reduce_mean", "reduce_min", "reduce_prod",
    "reduce_sum", "register_function", "register_gradient", "register_kernel", "register_op",
    "register_pytree", "remainder", "repeat", "report_uninitialized_variables",
    "reset_default_graph", "reshape", "result_type", "roll", "rot90", "round", "rsqrt", "scan",
    "scatter_add", "scatter_nd", "scatter_nd_add", "scatter_nd_max", "scatter_nd_min",
    "scatter_nd_update", "scatter_sub", "scatter_update", "searchsorted", "segment_max",
    "segment_mean", "segment_min", "segment_sum", "set_num_threads", "set_random_seed",
    "set_transfer_guard", "shape",
    "sigmoid", "sign", "signbit", "sin", "sinc", "sinh", "size", "sort", "split", "sqrt",
    "square", "squared_difference", "squeeze", "stack", "std", "stop_gradient", "string",
    "string_join", "string_length", "string_split", "string_to_hash_bucket",
    "string_to_hash_bucket_fast", "string_to_number", "substr", "subtract", "sum", "swapaxes",
    "switch", "switch_case", "take", "take_along_axis", "tan", "tanh", "tensordot", "tile",
    "to_device", "top_k", "trace", "train", "trainable_variables", "transfer_guard", "transpose",
    "tree_leaves", "tree_map",
    "tril", "triu", "trunc", "truncated_normal", "uint16", "uint32", "uint64", "uint8",
    "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values",
    "unique_with_counts", "unstack", "value_and_grad", "var", "variable_scope",
    "variables_initializer", "vecdot", "vector_norm", "vjp", "where", "while_loop",
    "write_file", "xlog1py", "xlogy", "zeros", "zeros_like",
]
