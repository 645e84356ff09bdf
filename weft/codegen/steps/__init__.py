"""A step as a table of kernel calls, loops and branches, and the code that walks it.

Enters: a fused graph with its memory plan. Leaves: a program (`plan.py`) and its `Table`.
Imports: all of `codegen` but `cuda`."""
