"""The thread pool's life: how many threads, when they start and end."""
