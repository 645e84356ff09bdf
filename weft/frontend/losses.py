"""`wf.losses`: losses that reduce to one number, with weights, and penalties of parameters.

Losses of each row, without weights, are in `wf.nn`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import no_such_name as _no_such_name
from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.nn.reduced_losses import (
    Reduction,
    absolute_difference,
    categorical_hinge,
    compute_weighted_loss,
    contrastive_loss,
    cosine_distance,
    hinge_loss,
    huber_loss,
    kl_divergence,
    l1_l2_regularizer,
    l1_regularizer,
    l2_regularizer,
    log_cosh,
    log_loss,
    log_poisson,
    margin_ranking_loss,
    mean_pairwise_squared_error,
    mean_squared_error,
    poisson,
    sigmoid_cross_entropy,
    sigmoid_focal_cross_entropy,
    softmax_cross_entropy,
    softmax_focal_cross_entropy,
    sparse_softmax_cross_entropy,
    squared_hinge,
    triplet_margin_loss,
)
from weft.ir.process import load as _load

if TYPE_CHECKING:
    from weft.frontend.session.variables import (
        get_regularization_loss,
        get_regularization_losses,
    )

__all__ = [
    "Reduction",
    "absolute_difference",
    "categorical_hinge",
    "compute_weighted_loss",
    "contrastive_loss",
    "cosine_distance",
    "get_regularization_loss",
    "get_regularization_losses",
    "hinge_loss",
    "huber_loss",
    "kl_divergence",
    "l1_l2_regularizer",
    "l1_regularizer",
    "l2_regularizer",
    "log_cosh",
    "log_loss",
    "log_poisson",
    "margin_ranking_loss",
    "mean_pairwise_squared_error",
    "mean_squared_error",
    "poisson",
    "sigmoid_cross_entropy",
    "sigmoid_focal_cross_entropy",
    "softmax_cross_entropy",
    "softmax_focal_cross_entropy",
    "sparse_softmax_cross_entropy",
    "squared_hinge",
    "triplet_margin_loss",
]

if not TYPE_CHECKING:  # a type checker knows the names
    _, __dir__ = _only_public(__name__, __all__)

    def __getattr__(name: str) -> object:
        """The two names that need graphs, which are loaded when they are used."""
        if name not in ("get_regularization_loss", "get_regularization_losses"):
            raise _no_such_name(__name__, name)
        found = globals()[name] = _load("weft.frontend.session.variables", name)
        return found
