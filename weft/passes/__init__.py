"""Graph in, graph out. Read `pipelines` first: which passes run, in which order, and why."""
