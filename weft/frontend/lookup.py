"""`wf.lookup`: tables from keys to values that never change, with TensorFlow's names.

Those that change are `wf.tf1.MutableHashTable`s.
"""

from __future__ import annotations

from weft.frontend.queues.tables import (
    KeyValueTensorInitializer,
    StaticHashTable,
    StaticVocabularyTable,
    TextFileIndex,
    TextFileInitializer,
    index_table_from_file,
    index_table_from_tensor,
    index_to_string_table_from_tensor,
)

__all__ = [
    "KeyValueTensorInitializer",
    "StaticHashTable",
    "StaticVocabularyTable",
    "TextFileIndex",
    "TextFileInitializer",
    "index_table_from_file",
    "index_table_from_tensor",
    "index_to_string_table_from_tensor",
]
