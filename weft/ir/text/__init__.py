"""The text form of the IR: printed, parsed, compared, drawn and digested.

Enters: a graph or its text. Leaves: the other one, exactly, at every stage; a diff, a drawing, a
digest. Imports: `weft/ir` itself and its `ops`."""
