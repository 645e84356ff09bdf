"""The dataflow executor: Switch/Merge, frames and iterations, host ops and plans as nodes."""
