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
    from weft.frontend.ops.dtype_info import (
        FloatInfo, IntegerInfo, can_cast, finfo, iinfo, isdtype, result_type,
    )
    from weft.frontend.ops.arithmetic import (
        abs, add, astype, bitcast, bitwise_and, bitwise_invert, bitwise_left_shift, bitwise_or,
        bitwise_right_shift, bitwise_xor, ceil, clip, conj, copysign, divide, equal, floor,
        fma, floor_divide, greater, greater_equal, imag, isclose, isfinite, isinf, isnan, less,
        less_equal,
        logical_and, logical_not, logical_or, logical_xor, maximum, minimum, multiply, nan_to_num,
        negative, nextafter, not_equal, positive, real, reciprocal, remainder, round, sign, signbit,
        square, squared_difference, subtract, trunc, where,
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
    from weft.frontend.ops.einsum import Term, einsum
    from weft.frontend.ops.elementwise import (
        acos, acosh, asin, asinh, atan, atan2, atanh, cbrt, cos, cosh, deg2rad, digamma, erf, erfc,
        erfinv, exp, exp2, expm1, hypot, lgamma, log, log10, log1p, log2, logaddexp, pow, rad2deg,
        rsqrt, sigmoid, sin, sinc, sinh, sqrt, tan, tanh, xlog1py, xlogy,
    )
    from weft.frontend.ops.index import (
        gather, gather_nd, scatter_nd, scatter_nd_add, scatter_nd_max, scatter_nd_min,
        scatter_nd_update, take, take_along_axis,
    )
    from weft.frontend.ops.segments import segment_max, segment_mean, segment_min, segment_sum
    from weft.frontend.ops.linalg import (
        cross, diag, diagonal, dot, inner, matmul, matrix_norm, matrix_power, outer, tensordot,
        trace, vecdot,
    )
    from weft.frontend.ops.rearrange import (
        concat, diff, flip, pad, repeat, roll, rot90, split, stack, tile, unstack,
    )
    from weft.frontend.ops.reduction import (
        all, any, argmax, argmin, count_nonzero, cumulative_logsumexp, cumulative_max,
        cumulative_min,
        cumulative_prod, cumulative_sum, logsumexp, max, mean, min, prod, std, sum, var,
        vector_norm,
    )
    from weft.frontend.ops.shape import (
        broadcast_arrays, broadcast_to, expand_dims, flatten, matrix_transpose, moveaxis,
        permute_dims, rank, reshape, shape, size, squeeze, swapaxes, transpose,
    )
    from weft.frontend.ops.sort import TopK, argsort, searchsorted, sort, top_k
    from weft.frontend.pytree import register_pytree, tree_leaves, tree_map
    from weft.frontend.tensor import Tensor
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
    from weft.frontend.tracing.autodiff import (
        grad, gradients, jvp, stop_gradient, value_and_grad, vjp,
    )
    from weft.frontend.control.branches import case, cond, switch_case
    from weft.frontend.control.loops import fori_loop, while_loop
    from weft.frontend.control.primitives import (
        enter, exit, loop_cond, merge, next_iteration, switch,
    )
    from weft.frontend.control.scan import foldl, foldr, map_fn, scan
    from weft.frontend.tracing.custom_gradient import custom_gradient
    from weft.frontend.benchmark import bench
    from weft.frontend.devices import bfloat16_transfer, colocate_with, device
    from weft.frontend.device_array import DeviceArray, to_device
    from weft.runtime.device.backends.info import DeviceInfo
    from weft.frontend.device_list import devices
    from weft.frontend.transfers import set_transfer_guard, transfer_guard
    from weft.frontend.train.replicas.partitioned import create_partitioned_variables
    from weft.ir.device import DeviceSpec
    from weft.frontend.extend.gradients import register_gradient
    from weft.frontend.extend.kernels import register_kernel
    from weft.frontend.extend.ops import register_op
    from weft.frontend.extend.py_function import py_function, register_function
    from weft.frontend.indexed_slices import IndexedSlices
    from weft.frontend.calls.decorator import compile
    from weft.frontend.calls.function import CompiledFunction
    from weft.frontend.session.graph import (
        Graph, get_default_graph, name_tensor, placeholder, reset_default_graph,
    )
    from weft.frontend.session.initializers import (
        global_variables, global_variables_initializer, initialize_all_variables,
        trainable_variables, variables_initializer,
    )
    from weft.frontend.session.scopes import control_dependencies, group, name_scope, no_op
    from weft.frontend.queues.accumulators import (
        ConditionalAccumulator, SparseConditionalAccumulator, SparseGradient,
    )
    from weft.frontend.queues.arrays import TensorArray
    from weft.frontend.queues.stack import Stack
    from weft.frontend.queues.barrier import Barrier
    from weft.frontend.queues.base import QueueBase
    from weft.frontend.queues.kinds import (
        FIFOQueue, PaddingFIFOQueue, PriorityQueue, RandomShuffleQueue,
    )
    from weft.frontend.queues.tables import MutableHashTable
    from weft.frontend.random.state import (
        random_normal, random_shuffle, random_uniform, set_random_seed, truncated_normal,
    )
    from weft.frontend.session.default import get_default_session
    from weft.frontend.session.growth import GraphGrowthWarning
    from weft.frontend.session.importing import import_graph_def
    from weft.frontend.session.interactive import InteractiveSession
    from weft.frontend.session.metadata import RunMetadata, chrome_trace
    from weft.frontend.session.options import RunOptions
    from weft.frontend.session.session import Session
    from weft.frontend.calls.elsewhere import DeviceWarning
    from weft.frontend.calls.specializations import RecompileWarning
    from weft.frontend.data.features import FixedLenFeature, VarLenFeature
    from weft.frontend.files.contents import (
        decode_csv, decode_image, decode_jpeg, decode_png, matching_files, parse_example,
        parse_single_example, read_file, write_file,
    )
    from weft.frontend.files.inputs import local_variables_initializer
    from weft.frontend.files.readers import (
        FixedLengthRecordReader, IdentityReader, ReaderBase, TextLineReader, TFRecordReader,
        WholeFileReader,
    )
    from weft.frontend.files.reports import Assert, Print
    from weft.frontend.ops.strings import (
        SparseTensorValue, as_string, decode_raw, string_join, string_length, string_split,
        string_to_hash_bucket, string_to_hash_bucket_fast, string_to_number, substr,
    )
    from weft.frontend.ops.tf_names import (
        cast, cumprod, cumsum, fill, identity, reduce_all, reduce_any, reduce_logsumexp, reduce_max,
        reduce_mean, reduce_min, reduce_prod, reduce_sum,
    )
    from weft.frontend.train.clipping import (
        clip_by_global_norm, clip_by_norm, clip_by_value, global_norm,
    )
    from weft.frontend.calls.threads import get_num_threads, set_num_threads
    from weft.frontend.containers import container
    from weft.frontend.state_functions import (
        assert_variables_initialized, assign, assign_add, assign_sub, count_up_to,
        is_variable_initialized, report_uninitialized_variables, scatter_add, scatter_sub,
        scatter_update,
    )
    from weft.frontend.variable import Variable
    from weft.frontend.variable_scope import (
        AUTO_REUSE, VariableScope, get_variable, get_variable_scope, variable_scope,
    )
    from weft.frontend.tracing.trace import Effect
    from weft.runtime.resources.cancel import CancelToken

_MODULES = ("data", "lookup", "nn", "random", "train")  # public modules, of weft.frontend
_LATER = {
    "weft.frontend.tracing.autodiff": "grad gradients jvp stop_gradient value_and_grad vjp",
    "weft.frontend.control.branches": "case cond switch_case",
    "weft.frontend.control.loops": "fori_loop while_loop",
    "weft.frontend.control.primitives": "enter exit loop_cond merge next_iteration switch",
    "weft.frontend.control.scan": "foldl foldr map_fn scan",
    "weft.frontend.tracing.custom_gradient": "custom_gradient",
    "weft.frontend.benchmark": "bench",
    "weft.frontend.devices": "bfloat16_transfer colocate_with device",
    "weft.frontend.device_array": "DeviceArray to_device",
    "weft.frontend.device_list": "DeviceInfo devices",
    "weft.frontend.transfers": "set_transfer_guard transfer_guard",
    "weft.frontend.train.replicas.partitioned": "create_partitioned_variables",
    "weft.ir.device": "DeviceSpec",
    "weft.frontend.extend.gradients": "register_gradient",
    "weft.frontend.extend.kernels": "register_kernel",
    "weft.frontend.extend.ops": "register_op",
    "weft.frontend.extend.py_function": "py_function register_function",
    "weft.frontend.indexed_slices": "IndexedSlices",
    "weft.frontend.calls.decorator": "compile",
    "weft.frontend.calls.function": "CompiledFunction",
    "weft.frontend.session.graph":
        "Graph get_default_graph name_tensor placeholder reset_default_graph",
    "weft.frontend.session.initializers":
        "global_variables global_variables_initializer initialize_all_variables "
        "trainable_variables variables_initializer",
    "weft.frontend.session.scopes": "control_dependencies group name_scope no_op",
    "weft.frontend.queues.accumulators":
        "ConditionalAccumulator SparseConditionalAccumulator SparseGradient",
    "weft.frontend.queues.arrays": "TensorArray",
    "weft.frontend.queues.stack": "Stack",
    "weft.frontend.queues.barrier": "Barrier",
    "weft.frontend.queues.base": "QueueBase",
    "weft.frontend.queues.kinds": "FIFOQueue PaddingFIFOQueue PriorityQueue RandomShuffleQueue",
    "weft.frontend.queues.tables": "MutableHashTable",
    "weft.frontend.random.state":
        "random_normal random_shuffle random_uniform set_random_seed truncated_normal",
    "weft.frontend.session.default": "get_default_session",
    "weft.frontend.session.growth": "GraphGrowthWarning",
    "weft.frontend.session.importing": "import_graph_def",
    "weft.frontend.session.interactive": "InteractiveSession",
    "weft.frontend.session.metadata": "RunMetadata chrome_trace",
    "weft.frontend.session.options": "RunOptions",
    "weft.frontend.session.session": "Session",
    "weft.frontend.calls.elsewhere": "DeviceWarning",
    "weft.frontend.calls.specializations": "RecompileWarning",
    "weft.frontend.data.features": "FixedLenFeature VarLenFeature",
    "weft.frontend.files.contents":
        "decode_csv decode_image decode_jpeg decode_png matching_files parse_example "
        "parse_single_example read_file write_file",
    "weft.frontend.files.inputs": "local_variables_initializer",
    "weft.frontend.files.readers":
        "FixedLengthRecordReader IdentityReader ReaderBase TextLineReader TFRecordReader "
        "WholeFileReader",
    "weft.frontend.files.reports": "Assert Print",
    "weft.frontend.ops.strings":
        "SparseTensorValue as_string decode_raw string_join string_length string_split "
        "string_to_hash_bucket string_to_hash_bucket_fast string_to_number substr",
    "weft.frontend.ops.tf_names":
        "cast cumprod cumsum fill identity reduce_all reduce_any reduce_logsumexp reduce_max "
        "reduce_mean reduce_min reduce_prod reduce_sum",
    "weft.frontend.train.clipping": "clip_by_global_norm clip_by_norm clip_by_value global_norm",
    "weft.frontend.calls.threads": "get_num_threads set_num_threads",
    "weft.frontend.containers": "container",
    "weft.frontend.state_functions":
        "assert_variables_initialized assign assign_add assign_sub count_up_to "
        "is_variable_initialized report_uninitialized_variables scatter_add scatter_sub "
        "scatter_update",
    "weft.frontend.variable": "Variable",
    "weft.frontend.variable_scope":
        "AUTO_REUSE VariableScope get_variable get_variable_scope variable_scope",
    "weft.frontend.tracing.trace": "Effect",
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
