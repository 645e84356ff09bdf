"""The command line, `weft`."""
