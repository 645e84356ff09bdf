"""Optimizers, gradient clipping and learning-rate schedules, as `wf.train` gives them.

Enters: a loss or gradients. Leaves: assignments to variables. Ordinary code over public ops.
Imports: `core`, `ops`, `state`, `autodiff`."""
