"""What users call: tensors, ops, `compile`, gradients, `nn`, `train`, graphs and sessions, the CLI.

Reading order: `tensor`, `dispatch`, `trace`, `function`, `variable`, `autodiff`, `graph`,
`session`, then the op modules `ops_*`, `nn`, `random`, `train`. The public names are in
`weft/__init__.py`.
"""
