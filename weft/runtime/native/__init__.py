"""Native steps on this processor: their plans, executables, the thread pool, and the call path from
CPython.

Enters: traced graphs and their passes. Leaves: a `StepPlan`, made or read from disk; `Executable`,
called with arrays; `NativeMaker`, which makes them for a `SizedStep`. Imports: `passes`, `codegen`,
`runtime.plan_store`, `runtime.resources`."""
