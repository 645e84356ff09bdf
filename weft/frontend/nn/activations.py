"""`wf.nn`: activation functions, softmax and attention, composed from public ops. Of attention the
pass fuse_attention makes one kernel.

Shapes stay. Bools and integers become the default float; real numbers only. Nothing overflows on
the way to a finite result, and the limits at +-inf are right where they exist; NaN stays NaN.
16-bit floats are computed in float32. Where a function is smooth its gradients of every order are
right, at the seams of its formula too."""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.frontend.autodiff.custom import custom_gradient
from weft.frontend.core.tensor import Tensor
from weft.frontend.eager.native import runs_native
from weft.frontend.ops.creation import arange
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import (
    abs,
    add,
    divide,
    equal,
    greater,
    greater_equal,
    isfinite,
    less_equal,
    maximum,
    minimum,
    multiply,
    negative,
    subtract,
    where,
)
from weft.frontend.ops.linalg import matmul
from weft.frontend.ops.manipulation import reshape
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_axis,
    inexact_tensor,
    strong_tensor,
    widened,
)
from weft.frontend.ops.special import erf, exp, expm1, log, log1p, sigmoid, tanh
from weft.ir.dims import format_shape
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.locations import caller_location

#: Klambauer et al., "Self-Normalizing Neural Networks", 2017, equation 14.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


@runs_native
def relu(x: TensorLike, /) -> Tensor:
    """max(x, 0), integers too; NaN stays NaN, and the gradient at 0 is 0.

    >>> wf.nn.relu(wf.asarray([-1.0, 0.0, 2.0]))
    Tensor([0., 0., 2.], dtype=float32)
    >>> wf.grad(lambda x: wf.sum(wf.nn.relu(x)))(wf.asarray([-1.0, 0.0, 2.0]))
    Tensor([0., 0., 1.], dtype=float32)
    """
    t = strong_tensor(x)
    return where(less_equal(t, 0), 0, t)


@runs_native
def relu6(x: TensorLike, /) -> Tensor:
    """min(max(x, 0), 6), integers too (Krizhevsky, "Convolutional deep belief networks on
    CIFAR-10"). The gradient at 0 and at 6 is 0, as in PyTorch.

    >>> wf.nn.relu6(wf.asarray([-1.0, 2.5, 9.0]))
    Tensor([0. , 2.5, 6. ], dtype=float32)
    """
    t = strong_tensor(x)
    return where(less_equal(t, 0), 0, where(greater_equal(t, 6), 6, t))


@runs_native
def leaky_relu(x: TensorLike, /, alpha: float = 0.2) -> Tensor:
    """x where x > 0, alpha*x elsewhere (Maas, Hannun and Ng 2013; TF1's default alpha).

    >>> wf.nn.leaky_relu(wf.asarray([-4.0, 4.0]), alpha=0.25)
    Tensor([-1.,  4.], dtype=float32)
    """
    t = inexact_tensor(x, "nn.leaky_relu")
    return where(greater(t, 0), t, multiply(t, alpha))


@runs_native
def elu(x: TensorLike, /, alpha: float = 1.0) -> Tensor:
    """x where x > 0, alpha*(exp(x) - 1) elsewhere (Clevert, Unterthiner and Hochreiter 2015).

    >>> wf.nn.elu(wf.asarray([-np.inf, 0.0, 3.0]))
    Tensor([-1.,  0.,  3.], dtype=float32)
    >>> wf.nn.elu(wf.asarray([-np.inf, 0.0, 3.0]), alpha=0.5)
    Tensor([-0.5,  0. ,  3. ], dtype=float32)
    """
    t = inexact_tensor(x, "nn.elu")
    # the exponential is taken of numbers <= 0 only: no inf whose gradient would be NaN
    return where(greater(t, 0), t, multiply(expm1(where(greater(t, 0), 0, t)), alpha))


@runs_native
def selu(x: TensorLike, /) -> Tensor:
    """scale * elu(x, alpha) with the constants of Klambauer et al. 2017.

    >>> wf.nn.selu(wf.asarray([-np.inf, 0.0, 1.0])).numpy().round(3)
    array([-1.758,  0.   ,  1.051], dtype=float32)
    """
    return multiply(elu(x, _SELU_ALPHA), _SELU_SCALE)


@runs_native
def gelu(x: TensorLike, /, approximate: bool = False) -> Tensor:
    """x times the normal distribution function at x (Hendrycks and Gimpel 2016).

    x/2 * (1 + erf(x/sqrt(2))); approximate: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))). 0 at
    -inf.

    >>> x = wf.asarray([-1.0, 0.0, 1.0, 2.0])
    >>> wf.nn.gelu(x).numpy().round(4)
    array([-0.1587,  0.    ,  0.8413,  1.9545], dtype=float32)
    >>> wf.nn.gelu(x, approximate=True).numpy().round(4)
    array([-0.1588,  0.    ,  0.8412,  1.9546], dtype=float32)
    """
    t = inexact_tensor(x, "nn.gelu")
    w = widened(t)
    if approximate:
        cubic = multiply(multiply(w, multiply(w, w)), 0.044715)
        share = tanh(multiply(add(w, cubic), math.sqrt(2.0 / math.pi)))
    else:
        share = erf(multiply(w, math.sqrt(0.5)))
    return cast(_times_share(w, multiply(add(share, 1), 0.5)), t.dtype)


@runs_native
def silu(x: TensorLike, /) -> Tensor:
    """x * sigmoid(x) (Elfwing, Uchibe and Doya 2017; also called swish). 0 at -inf.

    >>> wf.nn.silu(wf.asarray([-np.inf, -1.0, 0.0, 1.0])).numpy().round(3)
    array([ 0.   , -0.269,  0.   ,  0.731], dtype=float32)
    """
    t = inexact_tensor(x, "nn.silu")
    w = widened(t)
    return cast(_times_share(w, sigmoid(w)), t.dtype)


def _times_share(t: Tensor, share: Tensor) -> Tensor:
    # -inf times a share of 0 would be NaN: there the product is 0
    return multiply(where(equal(t, float("-inf")), 0, t), share)


@runs_native
def mish(x: TensorLike, /) -> Tensor:
    """x * tanh(softplus(x)) (Misra 2019). 0 at -inf.

    >>> wf.nn.mish(wf.asarray([-np.inf, -1.0, 0.0, 1.0])).numpy().round(3)
    array([ 0.   , -0.303,  0.   ,  0.865], dtype=float32)
    """
    t = inexact_tensor(x, "nn.mish")
    w = widened(t)
    return cast(_times_share(w, tanh(softplus(w))), t.dtype)


@runs_native
def softplus(x: TensorLike, /) -> Tensor:
    """log(1 + exp(x)), computed as max(x, 0) + log1p(exp(-|x|)); 0 at -inf, inf at inf.

    >>> wf.nn.softplus(wf.asarray([-100.0, 0.0, 100.0])).numpy().round(3)  # exp(100) overflows
    array([  0.   ,   0.693, 100.   ], dtype=float32)
    """
    t = inexact_tensor(x, "nn.softplus")
    w = widened(t)
    return cast(add(where(greater(w, 0), w, 0), softplus_tail(w)), t.dtype)


def softplus_tail(t: Tensor) -> Tensor:
    """log(1 + exp(-|t|)), as the difference of softplus(t) and max(t, 0).

    To be added to `where(greater(t, 0), ..., ...)`: each branch is then one smooth formula, and the
    gradients of every order at t = 0 are those of the sum (`abs` would have gradient 0 there).
    """
    return log1p(exp(where(greater(t, 0), negative(t), t)))


@runs_native
def log_sigmoid(x: TensorLike, /) -> Tensor:
    """log(sigmoid(x)), computed as -softplus(-x).

    >>> wf.nn.log_sigmoid(wf.asarray([-100.0, 0.0, 1.0])).numpy().round(3)
    array([-100.   ,   -0.693,   -0.313], dtype=float32)
    """
    return negative(softplus(negative(inexact_tensor(x, "nn.log_sigmoid"))))


@runs_native
def softsign(x: TensorLike, /) -> Tensor:
    """x / (1 + |x|) (Bergstra et al. 2009).

    >>> wf.nn.softsign(wf.asarray([-3.0, 0.0, 1.0]))
    Tensor([-0.75,  0.  ,  0.5 ], dtype=float32)
    """
    t = inexact_tensor(x, "nn.softsign")
    return divide(t, add(abs(t), 1))


@runs_native
def hard_sigmoid(x: TensorLike, /) -> Tensor:
    """relu6(x + 3) / 6.

    >>> wf.nn.hard_sigmoid(wf.asarray([-4.0, 0.0, 1.5, 4.0]))
    Tensor([0.  , 0.5 , 0.75, 1.  ], dtype=float32)
    """
    t = inexact_tensor(x, "nn.hard_sigmoid")
    return divide(minimum(maximum(add(t, 3), 0), 6), 6)


def _shifted(t: Tensor, axis: int) -> Tensor:
    """t minus its largest element along `axis`: exp of it cannot overflow, and the shift
    cancels.
    """
    if t.shape[axis] == 0:
        return t  # there is no largest element, and nothing to shift
    top = apply("max", t, axes=(axis,), keepdims=True)
    return subtract(t, apply("stop_gradient", where(isfinite(top), top, 0)))


@runs_native
def softmax(x: TensorLike, /, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) over `axis`: weights >= 0 that add up to 1. -inf gets weight 0.

    NaN where all elements are -inf or one is inf.

    >>> wf.nn.softmax(wf.asarray([5.0, 5.0, -np.inf]))
    Tensor([0.5, 0.5, 0. ], dtype=float32)
    >>> wf.nn.softmax(wf.asarray([[0.0, 1.0], [0.0, 2.0]]), axis=0).numpy().round(3)
    array([[0.5  , 0.269],
           [0.5  , 0.731]], dtype=float32)
    """
    t = inexact_tensor(x, "nn.softmax")
    along = check_axis("nn.softmax", axis, t.ndim)
    return cast(_softmax(widened(t), axis=along), t.dtype)


@custom_gradient
def _softmax(t: Tensor, *, axis: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """With y * (g - sum(g * y)) as its gradient, which needs y alone; that of the formula would
    need the exponentials and their sum, too.
    """
    weights = exp(_shifted(t, axis))
    y = divide(weights, apply("sum", weights, axes=(axis,), keepdims=True))

    def gradient(g: Tensor) -> Tensor:
        return multiply(subtract(g, apply("sum", multiply(g, y), axes=(axis,), keepdims=True)), y)

    return y, gradient


@runs_native
def log_softmax(x: TensorLike, /, axis: int = -1) -> Tensor:
    """log(softmax(x)), computed as x - logsumexp(x). -inf stays -inf.

    >>> wf.nn.log_softmax(wf.asarray([100.0, 100.0, 0.0])).numpy().round(3)
    array([  -0.693,   -0.693, -100.693], dtype=float32)
    """
    t = inexact_tensor(x, "nn.log_softmax")
    along = check_axis("nn.log_softmax", axis, t.ndim)
    shifted = _shifted(widened(t), along)
    total = apply("sum", exp(shifted), axes=(along,), keepdims=True)
    return cast(subtract(shifted, log(total)), t.dtype)


_NAME = "nn.scaled_dot_product_attention"


def scaled_dot_product_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    attn_mask: TensorLike | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale query key^T, masked) value: each row of `query` is answered with a mean of the
    rows of `value` (A. Vaswani et al., "Attention is all you need", 2017, equation 1).

    query: (..., rows, depth), key: (..., columns, depth), value: (..., columns, width), all of one
    floating dtype and with the same leading sizes (heads, say); the result is (..., rows, width).
    attn_mask: broadcasts to (..., rows, columns); a bool one is True where a row sees a column,
    another is added to the scaled scores. is_causal: row i sees columns up to i; both may be given.
    scale: 1 / sqrt(depth) if it is None. Names and meaning are PyTorch's; a row that sees nothing
    is NaN. 16-bit floats are computed in float32.

    Compiled for the CPU, float32 and float64, it is one kernel each for values and for gradients,
    whose memory grows with rows and columns and not with their product; when, says
    docs/decisions/0052-attention-kernel.md. ShapeError, TypeRuleError for operands that do not fit.

    >>> query, key = wf.zeros([2, 8]), wf.zeros([2, 8])  # all scores are equal
    >>> value = wf.asarray([[2.0, 0.0], [4.0, 8.0]])
    >>> wf.nn.scaled_dot_product_attention(query, key, value, is_causal=True)
    Tensor([[2., 0.],
            [3., 4.]], dtype=float32)
    """
    q, k, v = (inexact_tensor(x, _NAME) for x in (query, key, value))
    _check(q, k, v)
    dtype = q.dtype
    q, k, v = (widened(t) for t in (q, k, v))
    factor = 1 / math.sqrt(_depth(q)) if scale is None else scale
    scores = multiply(matmul(q, k, transpose_b=True), factor)
    mask = None if attn_mask is None else strong_tensor(attn_mask)
    if mask is not None and mask.dtype.kind != "bool":
        if not mask.dtype.is_floating:
            raise TypeRuleError(
                f"{_NAME}: attn_mask is of dtype {mask.dtype.name}",
                hint="a mask is bool, or of floats that are added to the scores",
                location=caller_location(),
            )
        scores = add(scores, cast(mask, scores.dtype))
    elif mask is not None:
        scores = where(mask, scores, -math.inf)
    if is_causal:
        rows, columns = scores.shape[-2:]
        below = greater_equal(reshape(arange(rows), (-1, 1)), arange(columns))
        scores = where(below, scores, -math.inf)
    return cast(matmul(softmax(scores), v), dtype)


def _depth(query: Tensor) -> int:
    depth = query.shape[-1]
    if not isinstance(depth, int):
        raise ShapeError(
            f"{_NAME}: the last size of query, {format_shape(query.shape)}, is not known",
            hint="give scale=",
            location=caller_location(),
        )
    return max(depth, 1)


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    shapes = ", ".join(format_shape(t.shape) for t in (query, key, value))
    if not query.dtype == key.dtype == value.dtype:
        names = ", ".join(t.dtype.name for t in (query, key, value))
        raise TypeRuleError(
            f"{_NAME}: query, key and value have the dtypes {names}",
            hint="convert them with wf.astype",
            location=caller_location(),
        )
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise ShapeError(
            f"{_NAME}: query, key and value have shapes {shapes}",
            hint="each has rows and columns: (..., rows, depth)",
            location=caller_location(),
        )
