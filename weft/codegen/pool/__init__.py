"""The thread pool's native code: jobs, workers, chunks."""
