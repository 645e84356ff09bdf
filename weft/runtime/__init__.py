"""What runs: variables, and executables made from graphs (passes, memory plan, native plan)."""

# First: before a fork its locks are taken last, after those of the variables, which a step holds
# while it may put something into a queue.
from weft.runtime.resources import attempts as attempts
