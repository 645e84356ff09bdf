"""Drawings of graphs: the tree of boxes that a graph is (`boxes`), where each box stands and how
the edges run (`layout`), and that as static SVG (`svg`). Reads graphs; imports `ir.text` and
`ir.ops` alone."""
