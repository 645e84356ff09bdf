"""`wf.data`: files as elements, and pipelines that bring them to the training step.

Enters: files, arrays, generators. Leaves: batches, one by one. Imports: `core`, `random`; formats
are in `runtime/files`."""

from __future__ import annotations

from weft.frontend.data.dataset import (
    Dataset,
    DatasetIterator,
    FixedLenFeature,
    VarLenFeature,
    parse_single_example,
    progress,
    read_csv,
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
    "read_image",
    "read_lines",
    "read_npy",
    "read_npz",
    "read_tfrecords",
    "resize_image",
]
