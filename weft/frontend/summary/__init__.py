"""`wf.summary`: what TensorBoard shows of a program: scalars, histograms, images, texts, the graph,
the times of its nodes, hyperparameters.

Enters: values, graphs, reports on runs. Leaves: event files. Imports: `core`, `ops`, `queues`,
`session`; formats are in `runtime/files` and `runtime/trace`.

Two ways. A `FileWriter` writes a value at once: `writer.scalar("loss", loss, step)`. In a
`wf.Graph`, as in TensorFlow 1, `scalar`, `histogram`, `image` and `text` are ops that make
serialized summaries; `merge_all` makes one of all, and `writer.add_summary` writes what a session
fetched. `wf.train.SummarySaverHook` does that every so many steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.summary.ops import histogram, image, merge, merge_all, scalar, text
from weft.frontend.summary.writer import FileWriter

__all__ = ["FileWriter", "histogram", "image", "merge", "merge_all", "scalar", "text"]

if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__, __dir__ = _only_public(__name__, __all__)
