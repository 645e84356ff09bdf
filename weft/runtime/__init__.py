"""Runtime: steps that are made of graphs and run, on this processor, on GPUs and on clusters.

Enters: traced graphs. Leaves: steps, called with arrays. Imports: `passes`, `codegen`, `comm`,
`ir`; its folders, each on those before it alone: `files`, `resources`, `checkpoint`,
`native`, `dataflow`, `trace`, `device`, `cluster`."""

# First: before a fork its locks are taken last, after those of the variables, which a step holds
# while it may put something into a queue.
from weft.runtime.resources import attempts as attempts
