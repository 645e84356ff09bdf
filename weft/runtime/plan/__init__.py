"""Plans of steps on this processor, made or read from disk, and the store of all plans.

Enters: a traced graph and its passes. Leaves: a `StepPlan`, and the report of how it was made.
Imports: `passes`, `codegen`; of `runtime` nothing."""
