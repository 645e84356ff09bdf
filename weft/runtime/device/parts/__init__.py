"""Steps over the CPU and GPUs of one process."""
