"""What a reply about a page is worth, and critics that are measured by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweetrl.backend.suite import generate as generate_programs
from sweetrl.evaluation.metrics import judged_metrics
from sweetrl.frontend import Frontend
from sweetrl.frontend.suite import generate
from sweetrl.frontend.suite.designs import write_page
from sweetrl.frontend.suite.judge import worth
from sweetrl.frontend.suite.tasks import read_request, reference_design
from sweetrl.methods.critics import OracleCritic
from sweetrl.types import ANSWER_MARKER, Candidate, Message, RankedState, Reply, Trajectory

TASK = next(iter(generate("test", 1, 4, 3)))
REFERENCE, PLAIN = write_page(reference_design(TASK)), write_page(read_request(TASK.problem_description))


def test_more_details_right_are_worth_more():
    name, value = reference_design(TASK).details[0]
    nearer = write_page(read_request(TASK.problem_description).set({name: value}))
    assert worth(TASK, f"Look.\n{REFERENCE}") == worth(TASK, f"{ANSWER_MARKER}\n{REFERENCE}") == 1.0
    assert 0.0 < worth(TASK, PLAIN) < worth(TASK, nearer) < 1.0
    assert worth(TASK, f"{ANSWER_MARKER}\n{nearer}") == pytest.approx(worth(TASK, nearer) - 1.0)
    assert worth(TASK, "What colour is the header?") == worth(TASK, "<html><body>no</body></html>") == 0.0
    assert worth(TASK, REFERENCE.replace(reference_design(TASK).title, "Other Bakery")) == 0.0


def test_tasks_of_other_kinds_are_not_judged():
    assert worth(replace(TASK, hidden_information=None), REFERENCE) is None
    assert worth(replace(TASK, problem_description="A page, please."), REFERENCE) is None
    assert worth(next(iter(generate_programs("test", 1, 4, 3))), REFERENCE) is None


def test_the_oracle_ranks_pages_and_critics_are_measured_by_it():
    dialogue = Trajectory(TASK, 0, (Message("user", TASK.problem_description),))
    replies = [
        Reply((number,), text) for number, text in enumerate((PLAIN, REFERENCE, "Blue?", f"{ANSWER_MARKER}{PLAIN}"))
    ]
    (((plain, reference, question, ended),),) = OracleCritic(Frontend()).rate([(dialogue, [replies])])
    assert reference > plain > question > ended
    advantages = (0.2, 0.1, 0.0, 0.2)  # right about 3 of the 6 pairs, undecided about one
    rated = zip(replies, advantages, strict=True)
    candidates = tuple(Candidate(reply.token_ids, reply.text, 1, advantage) for reply, advantage in rated)
    metrics = judged_metrics([RankedState(TASK.id, 0, 0, (1,), candidates)], [dialogue], Frontend())
    assert metrics == {"ranked/better_over_worse": pytest.approx(2.5 / 6)}
