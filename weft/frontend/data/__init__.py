"""`wf.data`: files as elements, and pipelines that bring them to the training step.

Enters: files, arrays, generators. Leaves: batches, one by one. Imports: `core`, `random`; formats
are in `runtime/files`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.data.dataset import Dataset, progress
from weft.frontend.data.iterator import DatasetIterator
from weft.frontend.data.readers import (
    FixedLenFeature,
    VarLenFeature,
    parse_single_example,
    read_csv,
    read_fixed_records,
    read_lines,
    read_npy,
    read_npz,
    read_tfrecords,
)
from weft.runtime.files.decoding import (
    decode_example,
    decode_image,
    encode_example,
    read_image,
    resize_image,
)
from weft.runtime.files.records import RecordWriter as TFRecordWriter

__all__ = [
    "Dataset",
    "DatasetIterator",
    "FixedLenFeature",
    "TFRecordWriter",
    "VarLenFeature",
    "decode_example",
    "decode_image",
    "encode_example",
    "parse_single_example",
    "progress",
    "read_csv",
    "read_fixed_records",
    "read_image",
    "read_lines",
    "read_npy",
    "read_npz",
    "read_tfrecords",
    "resize_image",
]

if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__, __dir__ = _only_public(__name__, __all__)
