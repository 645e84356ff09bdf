"""Native steps on this processor: executables, the thread pool, and the call path from CPython.

Enters: graphs or plans (`runtime.plan`). Leaves: `Executable`, `SizePlan`, called with arrays.
Imports: `runtime.plan`, `runtime.resources`."""
