"""Where every value lives: arena ranges, in-place results, the stacks of loops."""
