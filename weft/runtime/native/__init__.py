"""Native steps on this processor: executables, the thread pool, and the call path from CPython.

Enters: graphs or plans (`runtime.plan`). Leaves: `Executable`, called with arrays, and
`NativeMaker`, which makes them for a `SizedStep`. Imports: `runtime.plan`, `runtime.resources`."""
