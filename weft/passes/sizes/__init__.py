"""Symbolic sizes: give them numbers, and order ops after the values that tell them.

Enters: a graph with symbols in its types. Leaves: one with numbers, or one whose ops each find
their sizes. Imports: `ir`, nothing else of `passes`."""
