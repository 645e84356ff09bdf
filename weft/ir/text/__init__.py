"""The text form of the IR: printed, parsed, compared and drawn.

Enters: a graph or its text. Leaves: the other one, exactly, at every stage; a diff, a
drawing. Imports: `weft/ir` itself and its `ops`."""
