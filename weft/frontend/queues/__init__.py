"""Queues, tables and the other resources of the host, files and input pipelines, by TensorFlow 1's
names; called eagerly, or as ops of a `wf.Graph`.

Enters: tensors and values. Leaves: what the resources hold; effects. Imports: `core`, `ops`,
`state`, `control`, `autodiff`, `session`, `data`; the resources themselves are in `runtime`."""
