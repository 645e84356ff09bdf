"""Devices of this process: NVIDIA's driver or the emulator; their names, placement on them.

Enters: calls of `device.protocol.Device`. Leaves: work on a GPU. Imports: `runtime.device`,
`device.libraries`; `cuda.bindings` when a GPU is first asked for."""
