"""Tools: the `weft` command and `wf.bench`.

Enters: dumped graphs, functions, clusters, arguments of a command line. Leaves: text and files.
Imports: all of weft; nothing imports it but `weft/__main__.py` and, by name, `wf.bench` and
`wf.devices`. `main` has the commands, `bench*` the benchmarks of `weft bench`."""
