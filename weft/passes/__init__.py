"""Graph in, graph out. `pipelines` is the page to read first: which passes run, in which order, why."""
