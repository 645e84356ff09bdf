"""Table of the ops that have native kernels: what runs each on arrays, by the op's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.codegen.dynamic.text_hash import FARM, MURMUR, SIP
from weft.ir.spec import Array, Attrs
from weft.runtime.dynamic import selection, strings, words
from weft.runtime.dynamic.pairs import pairs_op
from weft.runtime.dynamic.unique import unique_op

Run = Callable[[Sequence[Array], Attrs], list[Array] | None]
NATIVE: Mapping[str, Run] = {
    "nonzero": selection.nonzero_op, "dynamic_partition": selection.partition_op,
    "dynamic_stitch": selection.stitch_op, "repeat_index": selection.repeat_op,
    "unique": unique_op, "sparse_pairs": pairs_op,
    "string_to_hash_bucket": strings.hash_buckets(MURMUR),
    "string_to_hash_bucket_fast": strings.hash_buckets(FARM),
    "string_to_hash_bucket_strong": strings.hash_buckets(SIP),
    "string_to_number": strings.numbers_op, "decode_raw": strings.raw_op,
    "string_split": words.split_op, "string_split_rows": words.split_rows_op,
    "substr": words.substr_op, "string_length": words.length_op,
    "string_join": words.join_op, "string_case": words.case_op,
}  # fmt: skip
