"""`wf.metrics`: accuracy, precision, AUC and others over many batches.

Enters: labels, predictions, weights. Leaves: sums in variables, and the numbers computed from them;
as objects (`Accuracy`), and as TensorFlow 1's pairs of value and update op (`accuracy`).
Imports: `core`, `ops`, `state`, `nn`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.metrics.functions import confusion_matrix, in_top_k
from weft.frontend.metrics.metric import (
    AUC,
    Accuracy,
    Comparison,
    ConfusionMatrix,
    Mean,
    MeanAbsoluteError,
    MeanIoU,
    MeanSquaredError,
    Metric,
    Precision,
    Recall,
    RootMeanSquaredError,
    SensitivityAtSpecificity,
    SpecificityAtSensitivity,
    TopKAccuracy,
)
from weft.frontend.metrics.streaming import (
    Streaming,
    accuracy,
    auc,
    mean,
    mean_absolute_error,
    mean_iou,
    mean_squared_error,
    precision,
    recall,
    root_mean_squared_error,
    sensitivity_at_specificity,
    specificity_at_sensitivity,
    streaming_confusion_matrix,
    top_k_accuracy,
)

__all__ = [
    "AUC",
    "Accuracy",
    "Comparison",
    "ConfusionMatrix",
    "Mean",
    "MeanAbsoluteError",
    "MeanIoU",
    "MeanSquaredError",
    "Metric",
    "Precision",
    "Recall",
    "RootMeanSquaredError",
    "SensitivityAtSpecificity",
    "SpecificityAtSensitivity",
    "Streaming",
    "TopKAccuracy",
    "accuracy",
    "auc",
    "confusion_matrix",
    "in_top_k",
    "mean",
    "mean_absolute_error",
    "mean_iou",
    "mean_squared_error",
    "precision",
    "recall",
    "root_mean_squared_error",
    "sensitivity_at_specificity",
    "specificity_at_sensitivity",
    "streaming_confusion_matrix",
    "top_k_accuracy",
]

if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__, __dir__ = _only_public(__name__, __all__)
