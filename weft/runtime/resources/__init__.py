"""Objects of the host that steps share and wait for: queues, tables, accumulators, a coordinator.

Each is thread-safe and has two faces: an asynchronous core (`start_*`, with a `done` callback that
runs outside every lock) for the executor, and blocking calls on top.
"""
