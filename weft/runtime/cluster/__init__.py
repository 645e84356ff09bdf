"""Clusters: their specification, the tasks that run parts of steps, and the client's master that
plans and runs steps over tasks (the paper, section 5).

Enters: placed graphs; what SLURM, Kubernetes, MPI or Ray say. Leaves: steps over several tasks or
devices. Imports: all of `runtime`, `comm`, `passes.partition`. Read `spec`, `master`, `server`."""
