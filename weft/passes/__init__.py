"""Passes: functions from graph to graph. Read `pipelines` first: their order, and the reasons.

Enters: a traced graph and a pipeline. Leaves: the optimised graph, which is what is planned and
run. Imports: `ir` and all folders here. Of the files of this level the folders import `in_place`
and `sizes`, placement and partition `manager` too. Arrows point down: placement, partition |
fusion, autodiff | memory | control | in_place | simplify | rewriting, sizes."""
