"""`wf.train.MonitoredTrainingSession`: a session that initialises or restores, saves, stops its
threads, and begins anew from the last checkpoint when a task of its cluster is lost.

User-level code over sessions, `wf.train.Saver` and hooks (TensorFlow 1's names); docs/engines.md.
"""
