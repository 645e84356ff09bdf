"""Drawings of graphs: the tree of boxes that a graph is (`boxes`), where each box stands and how
the edges run (`layout`), that as static SVG (`svg`) and for notebooks; Graphviz text (`dot`). Reads
graphs; imports `ir.text` and `ir.ops` alone."""
