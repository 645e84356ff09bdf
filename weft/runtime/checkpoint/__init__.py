"""Checkpoints on disk: the file format, atomic writing, the state file of a folder, what is kept.

Enters: named arrays and state. Leaves: files, and what was in them. Imports: `runtime.resources`
(variables), `runtime.files`. No user API: that is `weft/frontend/train/saver*.py`."""
