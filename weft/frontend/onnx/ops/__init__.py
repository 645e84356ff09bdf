"""ONNX's operators, one function each, in files by group.

Enters: values of a model, tensors mostly. Leaves: the same; `table` finds them. Imports: the public
functions of weft, and `table`, `dtypes`, `sizes` and `run` beside it."""
