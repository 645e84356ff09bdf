"""Devices with memory of their own: a GPU, or one that is emulated with NumPy.

Enters: a traced graph. Leaves: a step on the device; arrays that stay there. Imports:
`runtime.plan_store`, `native`, `dataflow`, `trace`. The files here are what all folders share: the
device's protocol and the plan as data. Above them, in order: `libraries`, `backends`, `planning`,
`execution`."""
