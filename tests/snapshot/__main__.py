"""`python tests/snapshot`: the tree that this file stands in is the one that is looked at."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
# in place of this file's own folder, whose modules are those of a package
FOLDERS = (".", "support", "support/gpu", "programs", "../benchmarks")
sys.path[:1] = [str(TESTS.parent), *(str(TESTS / folder) for folder in FOLDERS)]

from snapshot.command import main  # noqa: E402

raise SystemExit(main())
