"""Execution of a GPU plan: executables, frames of memory, recordings, loops that the host leads.

Enters: a `DevicePlan`, arrays. Leaves: arrays, on the device or the host. Imports: all other
folders of `runtime.device`, `runtime.native`, `dataflow`, `trace`."""
