"""Tasks that are killed, stopped and cut off at random moments: no hang, no wrong result, no leak.

25 runs, and a program that is itself killed; `python tests/support/faults_program.py 100` is a
hundred (5 minutes). That file says what is trained.
"""

from __future__ import annotations

import faults_program
import pytest

pytestmark = pytest.mark.slow


def test_tasks_with_faults() -> None:
    outcomes = faults_program.run_all(25)
    print(faults_program.summary(outcomes))
    wrong = [str(outcome) for outcome in outcomes if outcome.wrong]
    assert not wrong, "\n".join(wrong)
    assert {o.end for o in outcomes} & {"recovered"}


def test_the_program_is_killed() -> None:
    with faults_program.supervised() as tasks:
        right, _ = faults_program.undisturbed(tasks)
        assert not faults_program.killed_program(tasks, 0, right)
