"""Clusters: which tasks there are, tasks that run parts of steps, and the master in the client that
makes steps of them (the paper, section 5).

Enters: placed graphs; what SLURM, Kubernetes, MPI or Ray say. Leaves: steps over several tasks or
devices. Imports: all of `runtime`, `comm`, `passes.partition`. Read `spec`, `master`, `server`."""
