"""Partitioning: one placed graph becomes a graph for each device, joined by send and recv.

Enters: a graph whose ops name full devices. Leaves: an `ir.program.Program`, the parts
with the messages between them. Imports: `ir`, `rewriting`, `simplify`, `control`. Read
`partition.partition` first.
"""
