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
    from weft.frontend.ops.promotion import can_cast, finfo, iinfo, isdtype, result_type
    from weft.frontend.ops.elementwise import (
        abs, add, astype, bitcast, bitwise_and, bitwise_invert, bitwise_left_shift, bitwise_or,
        bitwise_right_shift, bitwise_xor, ceil, clip, conj, copysign, divide, equal, floor,
        floor_divide, fma, greater, greater_equal, imag, isclose, isfinite, isinf, isnan, less,
        less_equal, logical_and, logical_not, logical_or, logical_xor, maximum, minimum, multiply,
        nan_to_num, negative, nextafter, not_equal, positive, real, reciprocal, remainder, round,
        sign, signbit, square, subtract, trunc, where,
    )
    from weft.frontend.ops.special import (
        acos, acosh, asin, asinh, atan, atan2, atanh, cbrt, cos, cosh, deg2rad, digamma, erf, erfc,
        erfinv, exp, exp2, expm1, hypot, lgamma, log, log10, log1p, log2, logaddexp, pow, rad2deg,
        rsqrt, sigmoid, sin, sinc, sinh, sqrt, tan, tanh, xlog1py, xlogy,
    )
    from weft.frontend.ops.creation import (
        arange, asarray, empty, empty_like, eye, from_dlpack, full, full_like, iota, linspace,
        meshgrid, one_hot, ones, ones_like, tril, triu, zeros, zeros_like,
    )
    from weft.frontend.ops.dynamic import (
        argwhere, ensure_shape, nonzero, unique_all,
        unique_counts, unique_inverse, unique_values,
    )
    from weft.frontend.ops.linalg import (
        cross, diag, diagonal, dot, einsum, inner, matmul, outer,
        tensordot, trace, vecdot,
    )
    from weft.frontend.ops.indexing import take, take_along_axis
    from weft.frontend.ops.reduction import (
        all, any, argmax, argmin, argsort, count_nonzero, cumulative_logsumexp, cumulative_max,
        cumulative_min, cumulative_prod, cumulative_sum, isin, logsumexp, max, mean, min, prod,
        searchsorted, segment_max, segment_mean, segment_min, segment_sum, sort, std, sum, top_k,
        var,
    )
    from weft.frontend.ops.manipulation import (
        broadcast_arrays, broadcast_shapes, broadcast_to, concat, diff, expand_dims, flatten, flip,
        matrix_transpose, moveaxis, pad, permute_dims, repeat, reshape, roll, rot90, shape, size,
        split, squeeze, stack, swapaxes, tile, transpose, unstack,
    )
    from weft.frontend.core.pytree import register_pytree, tree_leaves, tree_map
    from weft.frontend.core.tensor import Tensor
    from weft.ir import errors
    from weft.ir.dtypes import (
        DType, bfloat16, bool_ as bool, complex128, complex64, float16, float32, float64, int16,
        int32, int64, int8, string, uint16, uint32, uint64, uint8,
    )
    from weft.ir.types import TensorType

# ---------------------------------------------------------------- names that are loaded when used
# Each stands twice: here for readers and type checkers, in _LATER for the interpreter.
if TYPE_CHECKING:
    from weft.frontend import (
        collectives, data, fft, image, initializers, lookup, losses, metrics, nn, onnx,
        quantization, random, strings, summary, testing, tf1, train,
    )
    from weft.frontend import sparse
    from weft.frontend.tf1 import *  # noqa: F403 - second names, which `dir` does not show
    from weft.frontend.autodiff.custom import custom_gradient
    from weft.frontend.autodiff.gradients import (
        grad, gradients, stop_gradient, value_and_grad, vjp,
    )
    from weft.frontend.transforms.checkpoint import checkpoint
    from weft.frontend.transforms.forward import (
        custom_jvp, hessian, hvp, jacfwd, jacrev, jvp, linearize,
    )
    from weft.frontend.transforms.mesh import Mesh, PartitionSpec
    from weft.frontend.transforms.shard_map import data_parallel, shard_map
    from weft.frontend.transforms.vmap import vmap
    from weft.frontend.control.associative import associative_scan
    from weft.frontend.control.branches import cond, switch_case
    from weft.frontend.control.loops import fori_loop, map_fn, scan, while_loop
    from weft.frontend.tools.bench_report import bench
    from weft.frontend.state.scopes import (
        bfloat16_transfer, control_dependencies, device, group, name_scope, no_op,
    )
    from weft.frontend.core.device_array import (
        DeviceArray, set_transfer_guard, to_device, transfer_guard,
    )
    from weft.runtime.device.backends.info import DeviceInfo
    from weft.frontend.tools.array_api import __array_namespace_info__
    from weft.frontend.tools.devices import devices
    from weft.ir.device import DeviceSpec
    from weft.frontend.extend.debug import (
        assert_finite, check, debug_callback, print, tap,
    )
    from weft.frontend.extend.ops import register_gradient, register_kernel, register_op
    from weft.frontend.extend.py_function import py_function, register_function
    from weft.frontend.bundle.export import export
    from weft.frontend.bundle.load import load
    from weft.frontend.extend.record import record, replay
    from weft.frontend.extend.scalar_functions import elementwise
    from weft.frontend.extend.scalar_reducer import reducer
    from weft.frontend.autodiff.indexed_slices import IndexedSlices
    from weft.frontend.compile.decorator import compile
    from weft.frontend.compile.function import CompiledFunction, DeviceWarning
    from weft.frontend.session.graph import Graph, name_tensor, placeholder
    from weft.frontend.session.variables import global_variables_initializer
    from weft.frontend.session.session import Session
    from weft.frontend.session.run import RunMetadata, RunOptions, chrome_trace
    from weft.frontend.compile.specializations import RecompileWarning
    from weft.frontend.compile.threads import get_num_threads, set_num_threads
    from weft.frontend.state.variable import Variable
    from weft.frontend.core.float64 import Float64Warning
    from weft.frontend.core.slow import PerformanceWarning
    from weft.frontend.core.trace import Effect
    from weft.runtime.resources.attempts import CancelToken

# public modules, of weft.frontend
_MODULES = (
    "collectives", "data", "fft", "image", "initializers", "lookup", "losses", "metrics", "nn",
    "onnx", "quantization", "random", "sparse", "strings", "summary", "testing", "tf1", "train",
)
_LATER = {
    "weft.frontend.autodiff.custom": "custom_gradient",
    "weft.frontend.autodiff.gradients": "grad gradients stop_gradient value_and_grad vjp",
    "weft.frontend.transforms.checkpoint": "checkpoint",
    "weft.frontend.transforms.forward":
        "custom_jvp hessian hvp jacfwd jacrev jvp linearize",
    "weft.frontend.transforms.mesh": "Mesh PartitionSpec",
    "weft.frontend.transforms.shard_map": "data_parallel shard_map",
    "weft.frontend.transforms.vmap": "vmap",
    "weft.frontend.control.associative": "associative_scan",
    "weft.frontend.control.branches": "cond switch_case",
    "weft.frontend.control.loops": "fori_loop while_loop map_fn scan",
    "weft.frontend.tools.bench_report": "bench",
    "weft.frontend.state.scopes":
        "bfloat16_transfer device control_dependencies group name_scope no_op",
    "weft.frontend.core.device_array": "DeviceArray to_device set_transfer_guard transfer_guard",
    "weft.runtime.device.backends.info": "DeviceInfo",
    "weft.frontend.tools.array_api": "__array_namespace_info__",
    "weft.frontend.tools.devices": "devices",
    "weft.ir.device": "DeviceSpec",
    "weft.frontend.extend.debug":
        "assert_finite check debug_callback print tap",
    "weft.frontend.extend.ops": "register_gradient register_kernel register_op",
    "weft.frontend.extend.py_function": "py_function register_function",
    "weft.frontend.bundle.export": "export",
    "weft.frontend.bundle.load": "load",
    "weft.frontend.extend.record": "record replay",
    "weft.frontend.extend.scalar_functions": "elementwise",
    "weft.frontend.extend.scalar_reducer": "reducer",
    "weft.frontend.autodiff.indexed_slices": "IndexedSlices",
    "weft.frontend.compile.decorator": "compile",
    "weft.frontend.compile.function": "CompiledFunction DeviceWarning",
    "weft.frontend.session.graph": "Graph name_tensor placeholder",
    "weft.frontend.session.variables": "global_variables_initializer",
    "weft.frontend.session.session": "Session",
    "weft.frontend.session.run": "RunMetadata chrome_trace RunOptions",
    "weft.frontend.compile.specializations": "RecompileWarning",
    "weft.frontend.compile.threads": "get_num_threads set_num_threads",
    "weft.frontend.state.variable": "Variable",
    "weft.frontend.core.float64": "Float64Warning",
    "weft.frontend.core.slow": "PerformanceWarning",
    "weft.frontend.core.trace": "Effect",
    "weft.runtime.resources.attempts": "CancelToken",
}
_HOME = {name: module for module, names in _LATER.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker knows the names, and what is no name
    def __getattr__(name: str) -> object:
        """Load what a public name stands for. AttributeError for a name that is none."""
        if name in _HOME:
            found = _load(_HOME[name], name)
        elif name in _MODULES:
            found = _load(f"weft.frontend.{name}")
        elif name[:1] != "_" and name in (second := _load("weft.frontend.tf1")).__all__:
            found = getattr(second, name)
        else:
            raise _load("weft.frontend.core.public_names", "no_such_name")("weft", name)
        globals()[name] = found
        return found

    class _PublicModules:
        """The finder of `import weft.nn`: the module that `wf.nn` is."""

        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> object:
            """None for what is no public module."""
            package, _, module = name.rpartition(".")
            if package != "weft" or module not in {*_MODULES, "errors", "linalg"}:
                return None
            spec = type(__spec__)(name, _PublicModules)
            spec.loader_state = globals().get(module) or __getattr__(module)
            return spec

        @staticmethod
        def create_module(spec: object) -> object:
            """The module itself, which is loaded: nothing is to be executed."""
            module = spec.loader_state
            spec.loader_state = module.__spec__
            return module

        @staticmethod
        def exec_module(module: object) -> None:
            """Undo what the import system has written into the module."""
            module.__spec__ = module.__spec__.loader_state

    _sys.meta_path.append(_PublicModules)  # last: only names that are nowhere come here

    def __dir__() -> list[str]:
        """The public names, those too that are not loaded yet; no second ones."""
        return sorted({*__all__, *(n for n in globals() if n.startswith("__"))})

del TYPE_CHECKING  # no name of weft's


# ------------------------------------------------------------------------------------- constants
e, inf, nan, pi = _math.e, _math.inf, _math.nan, _math.pi
newaxis = None
__array_api_version__ = "2025.12"

__version__ = "0.1.0"

__all__ = [
    "CancelToken", "CompiledFunction", "DType", "DeviceArray", "DeviceInfo", "DeviceSpec",
    "DeviceWarning", "Effect", "Float64Warning", "Graph", "IndexedSlices",
    "Mesh", "PartitionSpec", "PerformanceWarning", "RecompileWarning", "RunMetadata", "RunOptions",
    "Session", "Tensor", "TensorType", "Variable", "__array_namespace_info__", "abs",
    "acos", "acosh", "add", "all",
    "any", "arange", "argmax", "argmin", "argsort", "argwhere", "asarray", "asin", "asinh",
    "assert_finite", "associative_scan", "astype", "atan", "atan2", "atanh", "bench", "bfloat16",
    "bfloat16_transfer", "bitcast", "bitwise_and", "bitwise_invert", "bitwise_left_shift",
    "bitwise_or", "bitwise_right_shift", "bitwise_xor", "bool", "broadcast_arrays",
    "broadcast_shapes", "broadcast_to", "can_cast", "cbrt", "ceil", "check", "checkpoint",
    "chrome_trace", "clip", "collectives", "compile", "complex128", "complex64", "concat", "cond",
    "conj",
    "control_dependencies", "copysign", "cos", "cosh", "count_nonzero", "cross",
    "cumulative_logsumexp", "cumulative_max", "cumulative_min", "cumulative_prod",
    "cumulative_sum", "custom_gradient", "custom_jvp", "data", "data_parallel",
    "debug_callback", "deg2rad",
    "device", "devices", "diag", "diagonal", "diff", "digamma", "divide", "dot", "e", "einsum",
    "elementwise", "empty", "empty_like", "ensure_shape", "equal", "erf", "erfc", "erfinv",
    "errors", "exp", "exp2", "expand_dims", "expm1", "export", "eye", "fft", "finfo", "flatten",
    "flip", "float16", "float32", "float64", "floor", "floor_divide", "fma", "fori_loop",
    "from_dlpack", "full", "full_like", "get_num_threads", "global_variables_initializer", "grad",
    "gradients", "greater", "greater_equal", "group", "hessian", "hvp", "hypot", "iinfo", "imag",
    "image",
    "inf", "initializers", "inner", "int16", "int32", "int64", "int8", "iota", "isclose",
    "isdtype", "isfinite", "isin", "isinf", "isnan", "jacfwd", "jacrev", "jvp", "less",
    "less_equal", "lgamma", "linalg", "linearize", "linspace", "load", "log", "log10", "log1p",
    "log2", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "logsumexp",
    "lookup", "losses", "map_fn", "matmul", "matrix_transpose", "max",
    "maximum", "mean", "meshgrid", "metrics", "min", "minimum", "moveaxis", "multiply",
    "name_scope", "name_tensor", "nan", "nan_to_num", "negative", "newaxis", "nextafter", "nn",
    "no_op", "nonzero", "not_equal", "one_hot", "ones", "ones_like", "onnx", "outer", "pad",
    "permute_dims", "pi", "placeholder", "positive", "pow", "print", "prod", "py_function",
    "quantization",
    "rad2deg", "random", "real", "reciprocal", "record", "reducer", "register_function",
    "register_gradient", "register_kernel", "register_op", "register_pytree", "remainder",
    "repeat", "replay", "reshape", "result_type", "roll", "rot90", "round", "rsqrt", "scan",
    "searchsorted", "segment_max", "segment_mean", "segment_min", "segment_sum", "set_num_threads",
    "set_transfer_guard", "shape", "shard_map",
    "sigmoid", "sign", "signbit", "sin", "sinc", "sinh", "size",
    "sort", "sparse", "split", "sqrt", "square", "squeeze", "stack", "std", "stop_gradient",
    "string",
    "strings", "subtract", "sum", "summary", "swapaxes", "switch_case", "take", "take_along_axis",
    "tan", "tanh", "tap", "tensordot", "testing", "tf1", "tile", "to_device", "top_k", "trace",
    "train", "transfer_guard", "transpose", "tree_leaves", "tree_map", "tril", "triu", "trunc",
    "uint16", "uint32", "uint64", "uint8", "unique_all", "unique_counts", "unique_inverse",
    "unique_values", "unstack", "value_and_grad", "var", "vecdot", "vjp", "vmap",
    "where", "while_loop", "xlog1py", "xlogy", "zeros", "zeros_like",
]
