"""What must hold of every collected dialogue, as pure functions that return None or say in a few words what is wrong.

The `validate` stage turns these verdicts into columns of a table and the columns into Great Expectations.

A leak is training-time information c in something the actor sees: a system or user message holding, apart from blanks,
- a line of code of the reference or the hidden information (at least 12 characters, one of = ( [ { < among them),
- two consecutive lines of either, whatever is in them,
- a hidden test's call with its arguments,
- or the words that put c in front of the critic's prompt,
unless the same words stood earlier in the dialogue: then the request or the agent itself brought them up. The line with
the signature is public, and of a page only markup counts: its texts are there to be read. A user who tells a value
("the rate is 7") leaks nothing; that is what asking is for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from sweetrl.colbench.leaks import Fragment, leaked_fragment, squeeze
from sweetrl.types import Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain


def turn_order(trajectory: Trajectory) -> str | None:
    """The user opens with the task's request, the two alternate, the agent has the last word (unless it was lost)."""
    messages = trajectory.messages
    if not messages:
        return "there are no messages"
    for index, message in enumerate(messages):
        expected = "assistant" if index % 2 else "user"
        if message.role != expected:
            return f"message {index} is by the {message.role}, expected the {expected}"
    if messages[0].content != trajectory.task.problem_description:
        return "message 0 is not the task's request"
    if messages[-1].role != "assistant" and trajectory.outcome != "lost":
        return f"message {len(messages) - 1}, the last, is by the user, expected the assistant"
    return None


def protocol(trajectory: Trajectory, domain: Domain, max_turns: int) -> str | None:
    """At most `max_turns` replies, nothing said after the answer, and outcome and answer as the messages say."""
    replies = [message.content for message in trajectory.messages if message.role == "assistant"]
    if len(replies) > max_turns:
        return f"{len(replies)} agent turns, at most {max_turns} are allowed"
    for turn, reply in enumerate(replies[:-1], start=1):
        if domain.answers(reply):
            return f"the dialogue goes on after the answer in turn {turn}"
    if trajectory.outcome == "lost":
        return None
    outcome = domain.outcome(trajectory.messages)
    # That the user has left is in no message: such a dialogue looks as if the turns were over.
    left = trajectory.outcome == "user_left" and outcome == "max_turns_reached"
    if trajectory.outcome != outcome and not left:
        return f"the outcome is {trajectory.outcome!r}, but the messages say {outcome!r}"
    if trajectory.outcome == "max_turns_reached" and len(replies) < max_turns:
        return f"it is said to have reached its last turn after {len(replies)} of {max_turns}"
    if trajectory.answer != domain.final_answer(trajectory.messages):
        return "the answer is not what the last message says"
    return None


def turn_record(trajectory: Trajectory, domain: Domain) -> str | None:
    """One record for each agent message, which shows what the raw reply shows; as many log-probs as token ids."""
    places = [index for index, message in enumerate(trajectory.messages) if message.role == "assistant"]
    recorded = [turn.message_index for turn in trajectory.turns]
    if places != recorded:
        return f"agent messages stand at {places}, turn records point at {recorded}"
    for number, turn in enumerate(trajectory.turns, start=1):
        if domain.visible(turn.raw) != trajectory.messages[turn.message_index].content:
            return f"turn {number}: the message differs from the raw reply"
        if turn.logprobs and len(turn.logprobs) != len(turn.token_ids):
            return f"turn {number}: {len(turn.token_ids)} token ids and {len(turn.logprobs)} log-probs"
        if any(not math.isfinite(value) or value > 1e-6 for value in turn.logprobs):
            return f"turn {number}: a log-prob is not a finite number of at most 0"
    return None


def tokens(trajectory: Trajectory, decode: Callable[[Sequence[int]], str]) -> str | None:
    """Every turn's token ids decode to its raw text (`decode` drops special tokens); turns without ids are imported."""
    for number, turn in enumerate(trajectory.turns, start=1):
        if turn.token_ids and decode(turn.token_ids) != turn.raw:
            return f"turn {number}: the token ids do not decode to the raw reply"
    return None


def scored(trajectory: Trajectory) -> str | None:
    """A dialogue that ended by the protocol has a reward, a lost one has none."""
    if trajectory.outcome == "lost":
        return None if trajectory.reward is None else "it was lost and yet has a reward"
    if trajectory.reward is None:
        return "it has no reward"
    return None if math.isfinite(trajectory.reward) else "its reward is not a number"


def leak(trajectory: Trajectory, fragments: Sequence[Fragment], system: str = "") -> str | None:
    """Training-time information in what the actor sees: the `system` prompt or any system or user message.

    `fragments` are those of the trajectory's task (`Domain.hidden_fragments`).
    """
    request = squeeze(trajectory.task.problem_description)
    shown = squeeze(system)
    if (fragment := leaked_fragment(fragments, shown, (request,))) is not None:
        return f"the system prompt holds {fragment.name}"
    seen = [request]
    for index, message in enumerate(trajectory.messages):
        text = squeeze(message.content)
        if message.role != "assistant" and (fragment := leaked_fragment(fragments, text, seen)) is not None:
            return f"message {index} ({message.role}) holds {fragment.name}"
        seen.append(text)
    return None


def first_repeats(dialogues: Iterable[tuple[str, int, Hashable]]) -> list[int | None]:
    """For each (task id, attempt, words): the earlier attempt at the same task with the same words, or None."""
    seen: dict[tuple[str, Hashable], int] = {}
    result: list[int | None] = []
    for task_id, attempt, words in dialogues:
        earlier = seen.setdefault((task_id, words), attempt)
        result.append(None if earlier == attempt else earlier)
    return result
