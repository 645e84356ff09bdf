"""Graph in, graph out. Read `pipelines` first: which passes run, in which order, and why.

Enters: a traced graph and a pipeline. Leaves: the optimised graph, which is what is planned and
run. Imports: `ir` and all folders here; of these none imports this level, and arrows between them
point down: placement, partition | fusion | autodiff, memory | control | analysis | simplify |
rewriting, sizes."""
