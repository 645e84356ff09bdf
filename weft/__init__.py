"""weft: a dataflow-graph compiler."""
