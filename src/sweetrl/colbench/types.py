"""What the benchmark is made of: tasks, messages, agent turns, verdicts and trajectories. Plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Role = Literal["system", "user", "assistant"]
Suite = Literal["backend", "frontend"]
Outcome = Literal["answered", "out_of_rounds", "lost"]

ANSWER_MARKER = "I WANT TO ANSWER:"
OUTPUT_MARKER = "OUTPUT:"


@dataclass(frozen=True)
class Task:
    """One collaborative task. Only `problem_description` may ever reach the agent; the rest is hidden.

    `ground_truth` (reference code or HTML) and `hidden_information` are the training-time information c of the paper.
    `test_cases` are (name, call expression) pairs, e.g. ("test1", "f(1, 2)"), in file order.
    """

    id: str
    problem_description: str
    ground_truth: str
    test_cases: tuple[tuple[str, str], ...] = ()
    hidden_information: str | None = None
    suite: Suite = "backend"


@dataclass(frozen=True)
class Message:
    """One message of a dialogue as both sides see it (an agent's raw text may hold more, see AgentTurn.raw)."""

    role: Role
    content: str


@dataclass(frozen=True)
class AgentTurn:
    """What the engine produced for one assistant message.

    `token_ids` are the ids exactly as sampled (including the end-of-turn id where it was sampled), `logprobs` their
    natural-log probabilities under the sampling distribution at temperature 1. `raw` is the decoded text before the
    OUTPUT: marker is applied; Trajectory.messages[message_index].content is what the person saw.
    """

    message_index: int
    raw: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish_reason: Literal["stop", "length", "unknown"] = "unknown"


@dataclass(frozen=True)
class TestResult:
    """The verdict on one hidden unit test; `reason` is one of the codes documented in sweetrl.colbench.rewards."""

    __test__ = False  # not a pytest class

    name: str
    passed: bool
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class Trajectory:
    """One finished attempt at one task.

    `messages` starts with the person's request (role user); a system prompt is not part of it. `reward` is the fraction
    of hidden tests passed (backend) or the similarity (frontend), in [0, 1]; None when it was not scored or the
    dialogue was lost. `seed` is the seed of this dialogue's sampling; `policy` and `simulator` name who spoke.
    """

    task: Task
    attempt: int
    messages: tuple[Message, ...]
    turns: tuple[AgentTurn, ...] = ()
    answer: str | None = None
    reward: float | None = None
    tests: tuple[TestResult, ...] = ()
    outcome: Outcome = "answered"
    seed: int = 0
    policy: str = ""
    simulator: str = ""
    error: str = ""
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def success(self) -> bool:
        """Whether every hidden test passed (reward 1)."""
        return self.reward is not None and self.reward >= 1.0
