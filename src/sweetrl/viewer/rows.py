"""One dialogue as a row of the list: what happened, what went wrong first, and what the critic thought of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from sweetrl.colbench.find import find_domain
from sweetrl.errors import UserError
from sweetrl.file_hashes import file_hash
from sweetrl.plugins import is_plugin, source_of
from sweetrl.types import Judgment, RankedState, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.config.settings import Settings
    from sweetrl.types import Result
    from sweetrl.viewer.sources import Source

FAULTS = ("premature", "repeated", "irrelevant", "unhinted", "untold", "forgotten", "mistaken")
# What a column holds: a word of few ("word"), a number, a truth, or a text of its own.
KINDS = {
    "task": "text",
    "attempt": "number",
    **dict.fromkeys(("source", "stage", "method", "topic", "seed", "temperature", "persona", "round"), "word"),
    **dict.fromkeys(("domain", "outcome", "first_fault"), "word"),
    "fault_turn": "number",
    **dict.fromkeys(("held_out", "success", "scored"), "truth"),
    **dict.fromkeys(("reward", "passed", "tests", "turns", "questions"), "number"),
    **dict.fromkeys(FAULTS[:4], "number"),
    "details": "number",
    **dict.fromkeys(FAULTS[4:], "number"),
    **dict.fromkeys(("advantage", "least_advantage", "ranked", "pairs", "needed_last", "tokens"), "number"),
    "words": "truth",
    "label": "number",  # no part of the table, but what people have said since
}
NO_FAULT = "none"
NEEDED = "needed"  # the verdict on a question that the task needs

# How often the critic ranks the better kind of reply higher, over pairs of candidates at one state: by "better/worse"
# the number of pairs in the right order, where ties count half, and of all.
Contrasts = dict[str, list[float]]


class Domains:
    """The domains of dialogues by name, with the project's settings where they are the project's own."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.of = lru_cache(maxsize=None)(self._of)

    def _of(self, suite: str) -> Domain:
        if suite == self.settings.suite:
            return find_domain(suite).configured(self.settings)
        try:
            return find_domain(suite)
        except UserError:  # somebody else's, which is not here: its dialogues are shown without a diagnosis
            from sweetrl.colbench.domain import Domain

            return Domain()

    @cached_property
    def key(self) -> list[Any]:
        """What decides, beside the dialogues, what is said of them: the code of a domain of one's own, too."""
        suite, code = self.settings.suite, ""
        if is_plugin("domains", suite) and (source := source_of("domains", suite)).is_file():
            code = file_hash(source)
        return [suite, self.settings.model_dump(mode="json")["suite_options"], code, self.settings.agent.max_turns]


def row_of(
    dialogue: Trajectory,
    source: Source,
    domains: Domains,
    states: Sequence[RankedState],
    pairs: int,
    contrasts: Contrasts,
) -> dict[str, Any]:
    """Return the row of one dialogue; `states` are its ranked turns, `pairs` how many pairs were made of them."""
    from sweetrl.evaluation.metrics import result_of

    domain = domains.of(dialogue.task.suite)
    result = result_of(dialogue, source.method or dialogue.policy, domain, domains.settings.agent.max_turns)
    judged = verdicts(dialogue, domain)
    row = row_of_result(result, source) | {
        "attempt": dialogue.attempt,
        "method": source.method or dialogue.policy or "unknown",
        "domain": domain.name,
        "tokens": sum(len(turn.token_ids) for turn in dialogue.turns) or None,
        "words": True,
    }
    if any(judged):
        faults = ((turn, each.verdict) for turn, each in enumerate(judged, 1) if each and is_fault(each))
        row["fault_turn"], row["first_fault"] = next(faults, (None, NO_FAULT))
    return row | _ranked(dialogue, domain, states, pairs, contrasts)


def row_of_result(result: Result, source: Source) -> dict[str, Any]:
    """Return the row of a dialogue of which only the numbers are kept."""
    equal = ("topic", "outcome", "reward", "success", "turns", "questions", "held_out", "details", *FAULTS)
    return {
        **dict.fromkeys(KINDS),
        **{name: getattr(result, name) for name in equal},
        **{name: getattr(source, name) for name in ("stage", "seed", "persona")},
        "task": result.task_id,
        "attempt": 0,
        "source": source.name,
        "method": source.method or result.policy,
        "temperature": "" if source.temperature is None else f"{source.temperature:g}",
        "round": str(source.round),
        "domain": "",
        "passed": result.tests_passed if result.tests else None,
        "tests": result.tests or None,
        "scored": result.reward is not None,
        "premature": None if result.premature is None else int(result.premature),
        "words": False,
    }


def verdicts(dialogue: Trajectory, domain: Domain) -> list[Judgment | None]:
    """Return what each of the agent's turns was worth, where the domain knows how the task was made."""
    return [
        domain.judge(dialogue.task, dialogue.messages[:index], message.content)
        for index, message in enumerate(dialogue.messages)
        if message.role == "assistant"
    ]


def is_fault(judgment: Judgment | None) -> bool:
    """Whether a turn went wrong: a verdict, and nothing that it is worth."""
    return judgment is not None and bool(judgment.verdict) and judgment.worth <= 0


def _ranked(
    dialogue: Trajectory, domain: Domain, states: Sequence[RankedState], pairs: int, contrasts: Contrasts
) -> dict[str, Any]:
    """What the critic thought: of what was said, and whether it ranked a needed question last."""
    if not states:
        return {"ranked": 0, "pairs": 0}
    own: list[float] = []
    needed_last = 0
    for state in states:
        spoken = dialogue.turns[state.turn].token_ids if state.turn < len(dialogue.turns) else ()
        own += [reply.advantage for reply in state.candidates if reply.token_ids == spoken]
        earlier = dialogue.messages[: 2 * state.turn + 1]
        judgments = [domain.judge(dialogue.task, earlier, reply.text) for reply in state.candidates]
        verdict_of = [judgment.verdict if judgment else "" for judgment in judgments]
        judged = [(verdict, reply.advantage) for verdict, reply in zip(verdict_of, state.candidates, strict=True)]
        for (kind, high), (other, low) in product(judged, judged):
            if (kind, other) in domain.contrasts:
                sums = contrasts.setdefault(f"{kind}/{other}", [0.0, 0])
                sums[0] += (high > low) + 0.5 * (high == low)
                sums[1] += 1
        # The least advantage has a needed question, and another kind of reply lies above it.
        needed_last += len(set(verdict_of)) > 1 and min(judged, key=lambda reply: reply[1])[0] == NEEDED
    return {
        "advantage": sum(own) / len(own) if own else None,
        "least_advantage": min(own, default=None),
        "ranked": len(states),
        "pairs": pairs,
        "needed_last": needed_last,
    }
