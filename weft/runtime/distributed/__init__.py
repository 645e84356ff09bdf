"""Tasks: workers that run parts of steps, and the master in the client that makes steps of them
(paper, section 5)."""
