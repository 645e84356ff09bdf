"""What users call: tensors, ops, `compile`, gradients, `nn`, `train`, graphs and sessions, the CLI.

Reading order: `tensor`, `ops/dispatch`, `tracing/trace`, `calls/function`, `variable`,
`tracing/autodiff`, `session/graph`, `session/session`, then the ops themselves in `ops/`, `nn`,
`random`, `control`, and `train`. The public names are in `weft/__init__.py`.
"""
