"""Training with many tasks, as user-level code over public ops: where parameters are put, and how
replicas of a model train them together (the paper, sections 4.2 to 4.4)."""
