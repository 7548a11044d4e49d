"""The types that everything else speaks of: tasks, dialogues, prompts, scores, ranked replies. Plain frozen data.

Nothing here imports anything of the project. What can be done with these types is said in sweetrl.protocols.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

Float32 = Annotated[float, "float32"]  # what takes 4 bytes in a file
Role = Literal["system", "user", "assistant"]
Split = Literal["train", "test"]
Outcome = Literal["answered", "max_turns_reached", "user_left", "lost"]

# A message's content: a text, or texts and pictures (PNG) in order; pictures are for models that take them.
Content = str | tuple[str | bytes, ...]

ANSWER_MARKER = "I WANT TO ANSWER:"
OUTPUT_MARKER = "OUTPUT:"


# Tasks and dialogues


@dataclass(frozen=True)
class Task:
    """One collaborative task. Only `problem_description` may ever reach the agent; the rest is hidden.

    `ground_truth` (the reference: code, HTML, whatever is wanted) and `hidden_information` are the training-time
    information c of the paper. `test_cases` are (name, call expression) pairs, e.g. ("test1", "f(1, 2)"), in file
    order; domains without unit tests leave them empty. `suite` names the domain as params.yaml does.
    """

    id: str
    problem_description: str
    ground_truth: str
    test_cases: tuple[tuple[str, str], ...] = ()
    hidden_information: str | None = None
    suite: str = "backend"


@dataclass(frozen=True)
class Message:
    """One message of a dialogue as both sides see it (an agent's raw text may hold more, see AgentTurn.raw)."""

    role: Role
    content: str


@dataclass(frozen=True)
class AgentTurn:
    """What the engine produced for one assistant message.

    `token_ids` are the ids exactly as sampled (including the end-of-turn id where it was sampled), `logprobs` their
    natural-log probabilities under the sampling distribution at temperature 1. `raw` is the decoded text, thoughts and
    all; Trajectory.messages[message_index].content is what the user saw of it. The prompt that the engine was sent is
    the first `prompt_kept` ids of the turn before (its prompt and its reply), and then `prompt_ids`.
    """

    message_index: int
    raw: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish_reason: Literal["stop", "length", "unknown"] = "unknown"
    prompt_kept: int = 0
    prompt_ids: tuple[int, ...] = ()

    @property
    def perplexity(self) -> float | None:
        """exp of the mean negative log-probability of the tokens; None where it is not known, or says nothing.

        A server may write -9999 for the log-probability of a token that it has sampled nevertheless.
        """
        mean = sum(self.logprobs) / len(self.logprobs) if self.logprobs else math.nan
        return math.exp(-mean) if -50 < mean <= 0 else None


@dataclass(frozen=True)
class TestResult:
    """The verdict on one hidden test; `reason` is a code of the domain's scorer (sweetrl.backend.rewards)."""

    __test__ = False  # not a pytest class

    name: str
    passed: bool
    reason: str
    detail: str = ""


OUTGROWN = "the dialogue outgrew the agent's context"  # what the `error` of such a dialogue begins with


@dataclass(frozen=True)
class Trajectory:
    """One attempt at one task, finished or lost.

    `messages` starts with the user's request (role user); a system prompt is not part of it. `reward` is None when it
    was not scored or the dialogue was lost; `parts` are its named parts, where it has some. `solved` says whether the
    task is solved where the reward does not (None). `seed` is the seed of this dialogue's sampling; `policy` and
    `simulator` name who spoke. `extra` holds what else is known of it, as text.
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
    parts: dict[str, float] = field(default_factory=dict)
    solved: bool | None = None

    @property
    def outgrown(self) -> bool:
        """Whether it was lost because agent and user said more than the agent's context holds."""
        return self.outcome == "lost" and bool(self.turns) and self.error.startswith(OUTGROWN)

    @property
    def success(self) -> bool:
        """Whether the task is solved: as `solved` says, or without it a reward of 1 (every hidden test passed)."""
        if self.solved is not None:
            return self.solved
        return self.reward is not None and self.reward >= 1.0


@dataclass(frozen=True)
class Score:
    """The verdict on one dialogue's answer.

    `tests` are the verdicts of hidden tests where there are any, `parts` the named parts of the reward (their sum).
    `solved` says whether the task is solved where the reward does not: None is a reward of 1 or more. `semantics` names
    what computed the reward, `isolation` the layers that kept untrusted code in, `notes` what the domain writes down
    with the dialogue.
    """

    reward: float
    tests: tuple[TestResult, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)
    solved: bool | None = None
    semantics: str = ""
    isolation: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TestRun:
    """One hidden test run again for people: what the reference gives, what the answer gave, and the seconds it took.

    `reason` and `detail` are as in TestResult. A value is empty where there is none.
    """

    __test__ = False  # not a pytest class

    name: str
    call: str
    expected: str
    got: str
    passed: bool
    reason: str
    detail: str
    seconds: float


@dataclass(frozen=True)
class Leak:
    """Something that a user must not say: its kind, and the words that are one."""

    kind: str
    text: str


@dataclass(frozen=True)
class Judgment:
    """What a reply is worth, known from how its task was made: for measuring critics and for the oracle.

    `verdict` is one of the domain's names for kinds of good and bad replies, or empty where only the worth is known.
    """

    worth: float
    verdict: str = ""


@dataclass(frozen=True)
class Demonstration:
    """One scripted dialogue for pre-training; `informed`: the agent had seen the finished answer before."""

    messages: tuple[Message, ...]
    informed: bool = False


# Prompts and completions


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids, and the seed that decides everything random about its completions.

    Equal (engine, prompt, sampling) gives equal completions, whatever else is in the batch. `messages` are the same
    prompt as (role, content) pairs, for engines that take text only. Prompts of equal `group` begin alike: an engine
    with several servers sends them to the same one, where the beginning is cached.
    """

    token_ids: tuple[int, ...]
    seed: int
    messages: tuple[tuple[str, Content], ...] = ()
    group: str = ""


@dataclass(frozen=True)
class Sampling:
    """How to sample. temperature 0 means greedy. `n` completions are drawn for each prompt.

    A reply ends (finish_reason "stop") with the model's own ends and with any of `stop_ids`, which is its last id then;
    an engine that takes text only refuses those. It is broken off ("length") after `max_new_tokens`, or where the
    context is full.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    n: int = 1
    stop_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Completion:
    """One sampled reply: ids as sampled (an end-of-turn id included), log-probs at temperature 1, text without it.

    An engine that knows only text leaves ids and log-probs empty. `prompt_tokens` and `generated_tokens` are what a
    server says it has read and written for this reply (0: not told; with n > 1 the prompt counts once, with the first).
    `cached_tokens` of the prompt were not computed again. `busy` is this reply's share of the engine's busy seconds:
    what is under way together shares the time. What a reply cost is no part of what it is: the last two do not count
    when completions are compared.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = field(default=0, compare=False)
    busy: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Usage:
    """Tokens and time spent so far by an engine.

    `seconds` is the time in which the engine was at work on at least one reply. Of `requests` to servers `retries` were
    repetitions after a fault; `failures` replies could not be had at all. What a fault cost is part of `requests` and
    `seconds`, and of no tokens. `devices` accelerators work for the engine (0 on CPUs).
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    seconds: float = 0.0
    requests: int = 0
    retries: int = 0
    failures: int = 0
    devices: int = 0

    @property
    def gpu_seconds(self) -> float:
        """Accelerators times busy seconds; 0 on CPUs."""
        return self.devices * self.seconds


# Ranked replies


@dataclass(frozen=True)
class Reply:
    """A candidate reply before anybody has ranked it: its ids as sampled, and its text."""

    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Candidate(Reply):
    """One distinct reply at a state: how often it was sampled, and the advantage a critic gives it."""

    count: int
    advantage: float = 0.0


@dataclass(frozen=True)
class RankedState:
    """An agent's turn (from 0) in an offline dialogue: what the actor sees, and the candidates in order of sampling."""

    task_id: str
    attempt: int
    turn: int
    prompt_ids: tuple[int, ...]
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class ReplyRatios:
    """The tokens of a reply as texts, and log pi_theta - log pi_ref of each."""

    tokens: tuple[str, ...]
    ratios: tuple[Float32, ...]


@dataclass(frozen=True)
class TokenRatios:
    """What the advantages at a ranked state are made of (Eq. 3): the mean over a candidate's tokens is its advantage.

    Candidates are in their order.
    """

    task_id: str
    attempt: int
    turn: int
    replies: tuple[ReplyRatios, ...]


@dataclass(frozen=True)
class Preference:
    """Two replies to one state; nothing in it knows the training-time information c."""

    task_id: str
    attempt: int
    turn: int
    prompt_ids: tuple[int, ...]
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]
    chosen_advantage: float
    rejected_advantage: float


@dataclass(frozen=True, slots=True)
class TrajectoryPair:
    """Two attempts at one task; chosen_reward > rejected_reward."""

    task_id: str
    chosen_attempt: int
    rejected_attempt: int
    chosen_reward: float
    rejected_reward: float


@dataclass(frozen=True)
class TrainingResult:
    """What a training came to: the folder of the adapter, and what was measured.

    `model` is the trained model with its adapter, for those who go on with it at once.
    """

    adapter: Path
    summary: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    model: Any = None


# Evaluations


@dataclass(frozen=True)
class Result:
    """One evaluated dialogue. Columns that only a domain's diagnosis can fill are None for other tasks."""

    task_id: str
    policy: str
    topic: str
    reward: float | None
    success: bool
    outcome: str
    tests_passed: int
    tests: int
    turns: int
    questions: int
    repeated: int
    premature: bool | None = None
    irrelevant: int | None = None
    unhinted: int | None = None
    details: int | None = None
    untold: int | None = None
    forgotten: int | None = None
    mistaken: int | None = None
    held_out: bool = False
    """Whether tasks of this topic are in the test split only."""


@dataclass(frozen=True)
class Report:
    """Everything the page shows. `comparison` is the content of evaluation.json (sweetrl.evaluation.metrics.compare),
    `domain` the sweetrl.Domain of the tasks.

    `states` and `contexts` (the offline dialogues of the states, by task id and attempt) are for the critic's section,
    which is left out where there are no states.
    """

    domain: Any
    comparison: dict[str, Any]
    results: Sequence[Result]
    before: Sequence[Trajectory]
    after: Sequence[Trajectory]
    states: Sequence[RankedState] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    contexts: Mapping[tuple[str, int], Trajectory] = field(default_factory=dict)
