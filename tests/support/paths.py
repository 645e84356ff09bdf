"""Where things are in this repository, for tests that read files or start programs."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
#: Golden cases: graphs as text, with what must come of them.
CASES = TESTS / "cases"
#: What tests share, and the programs that they start.
SUPPORT = TESTS / "support"
GPU_SUPPORT = SUPPORT / "gpu"
PROGRAM_FOLDER = TESTS / "programs"
