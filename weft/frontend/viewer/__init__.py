"""The viewer: one HTML file that shows a step - its graph after every pass, its kernels with their
code, its memory, a timeline. Enters: programs and reports; leaves: a `View`, an HTML text. Imports
`ir`, `passes` and `runtime`; knows nothing of compiled functions and sessions, which call it."""
