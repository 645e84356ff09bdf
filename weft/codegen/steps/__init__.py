"""A step as a table of kernel calls, loops and branches, and the code that walks it."""
