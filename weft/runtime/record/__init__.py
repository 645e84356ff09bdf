"""Records of steps: what a step needs to be run again bit for bit, in files, and the runs of it.

`traced_step.py` describes a step to whoever watches its runs, `recorder.py` keeps records of runs,
`step_record.py` is one and its file, `needs.py` says what of the user's it needs, `replay.py` runs
it again, as far as it is known (`known_part.py`), `agreement.py` and `host_operands.py` hold two
runs against each other, `shrink.py` looks for a small program on which two ways to run it differ,
`verify_native.py` does that for each step as it runs."""
