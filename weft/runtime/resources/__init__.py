"""Resources: objects of the host that outlive a step - variables, queues, tables, accumulators.

Enters: calls of the user, the executor or a task. Leaves: arrays. Each is thread-safe and has two
faces: an asynchronous core (`start_*`, with a `done` callback that runs outside every lock) for the
executor, and blocking calls on top. Imports: `runtime.files`. Read `attempts` first."""
