"""Traces and measurements: timelines, critical path, Perfetto, replay, peak rates, counters.

Enters: events that executors noted, plans. Leaves: reports as data, text and JSON. Imports:
`runtime.dataflow` (events), `native`, `resources`."""
