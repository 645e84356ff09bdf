"""ONNX nodes for the ops of weft.

`table.py` has a row for each op: what writes its nodes (`elementwise.py`, `moves.py`, ...), or why
nothing does; `patterns.py` finds what is one operator; `graph.py` is the graph while it is written.
Enters: a graph before fusion. Leaves: nodes, for `save.py`. Imports: `bundle`, `nn`, `ir`."""
