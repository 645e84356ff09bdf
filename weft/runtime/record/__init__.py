"""Records of steps: what a step needs to be run again bit for bit, in files, and the runs of it.

`traced_step.py` describes a step to whoever watches its runs, `recorder.py` keeps records of runs,
`step_record.py` is one and its file, `replay.py` runs it again, `shrink.py` looks for a small
program on which two ways to run it differ, `stepping.py` goes through it op by op."""
