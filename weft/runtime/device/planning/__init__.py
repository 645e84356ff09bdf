"""Planning for a GPU: from a graph to a plan of launches.

Enters: a traced graph and its passes. Leaves: a `DevicePlan`, made or read from disk. Imports:
`runtime.device`, `device.libraries` (which are installed), `runtime.plan_store`."""
