"""Checkpoints on disk: the file format, atomic writing, the state file, what is kept.

No user API: that is `weft/frontend/train/saver*.py`.
"""
