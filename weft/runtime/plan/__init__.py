"""Plans of steps on this processor: what a step needs to run, made from a graph or read from disk.

Enters: a traced graph and its passes. Leaves: a `StepPlan`, and the report of how it was made.
Imports: `passes`, `codegen`; of `runtime` nothing."""
