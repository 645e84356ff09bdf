"""Execution of a GPU plan: executables, activations (memory of one call), recordings, loops that
the host leads.

Enters: a `DevicePlan`, arrays. Leaves: arrays, on the device or the host. Imports: all other
folders of `runtime.device`, `runtime.native`, `dataflow`, `trace`."""
