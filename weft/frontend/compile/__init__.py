"""`wf.compile`: Python functions as native steps.

Enters: a function, and a call's arguments. Leaves: the call's results, by one native call; reports
on what was made (`explain`, `cost`). Imports: `core`; `passes`, `codegen` and `runtime` make the
step. Read `decorator`, `function`, `arguments`, `compiled`, `native_call`."""
