"""Which tasks there are and which of them this process is: cluster specs, and resolvers that read
what an existing engine (SLURM, Kubernetes, MPI, torchrun, Ray) says of it.

Pure reading of the environment: no subprocess, no network; Ray is imported by `ray_cluster` alone.
"""
