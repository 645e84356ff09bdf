"""The viewer: one HTML file that shows a step - its graph after every pass, its kernels with their
code, its memory, a timeline - or a history of benchmarks. Enters: programs and reports, figures;
leaves: a `View` or a `HistoryPage`, an HTML text. Imports `ir`, `passes` and `runtime`; knows
nothing of compiled functions, sessions and the command line, which call it."""
