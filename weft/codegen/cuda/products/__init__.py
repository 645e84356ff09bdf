"""Matrix products on a GPU, with what follows them in one kernel."""
