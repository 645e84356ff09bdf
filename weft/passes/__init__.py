"""Passes: functions from graph to graph. Read `pipelines` first: their order, and the reasons.

Enters: a traced graph and a pipeline. Leaves: the optimised graph, which is what is planned and
run. Imports: `ir` and all folders here; of these none imports this level, and arrows between them
point down: placement, partition | fusion | autodiff, memory | control | analysis | simplify |
rewriting, sizes."""
