"""The intermediate representation: what a weft program is and what it means.

Reading order: `dtypes`, `dims`, `types`, `attributes`, `graph`, `spec`, the tables of `ops`,
`builder`, `printer`, `parser`, `verify`, `interpreter`.
"""
