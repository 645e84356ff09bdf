"""What runs: variables, and executables made from graphs (passes, memory plan, native plan)."""
