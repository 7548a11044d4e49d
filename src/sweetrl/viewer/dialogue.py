"""One dialogue with all that is known about it, as plain JSON values: for the page, and for whoever copies them."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.thoughts import split_thoughts
from sweetrl.types import AgentTurn, Judgment, Message, Preference, RankedState, Task, TokenRatios, Trajectory
from sweetrl.viewer.heat import shown_tokens
from sweetrl.viewer.index import Catalogue
from sweetrl.viewer.overview import TrackedRuns
from sweetrl.viewer.ranked import Ranked
from sweetrl.viewer.rows import is_fault, verdicts
from sweetrl.viewer.sources import Source

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain


class Dialogues:
    """Dialogues of a catalogue by row number, with their rankings."""

    def __init__(self, catalogue: Catalogue, tracked: TrackedRuns) -> None:
        self.catalogue, self.tracked = catalogue, tracked
        most = max((len(index.source.rankings) for index in catalogue.indices), default=0)
        self.ranked = lru_cache(maxsize=max(8, most))(Ranked)  # a study's dialogue has all of its variants' at once

    def read(self, row: int) -> tuple[Trajectory, Domain]:
        """Return dialogue number `row` and its domain; UserError where only its numbers are kept."""
        _, _, dialogue = self.catalogue.read(row)
        if dialogue is None:
            raise UserError(f"row {row}: only the numbers of this dialogue are kept.")
        return dialogue, self.catalogue.domains.of(dialogue.task.suite)

    def describe(self, row: int) -> dict[str, Any]:
        """Return dialogue number `row` as plain values; IndexError where there is none."""
        return self.described(row, *self.catalogue.read(row))

    def every(self) -> Iterator[tuple[int, Trajectory | None, dict[str, Any]]]:
        """Yield every dialogue in the order of rows: its number, itself, and as plain values."""
        for row, (source, task, dialogue) in enumerate(self.catalogue.dialogues()):
            yield row, dialogue, self.described(row, source, task, dialogue)

    def described(self, row: int, source: Source, task: str, dialogue: Trajectory | None) -> dict[str, Any]:
        """Return a dialogue of `source` as plain values; without `dialogue` there is no more than the task's id."""
        if dialogue is None:
            return {"row": row, "source": source.name, "task": {"id": task}, "messages": None}
        domain = self.catalogue.domains.of(dialogue.task.suite)
        description = plain(dialogue, domain)
        for ranking in source.rankings:  # what each critic thought of what else was sampled
            ranked = self.ranked(ranking.folder)
            pairs = ranked.pairs.of(dialogue.task.id, dialogue.attempt)
            for state in ranked.states.of(dialogue.task.id, dialogue.attempt):
                if state.turn < len(description["turns"]):
                    own = [pair for pair in pairs if pair.turn == state.turn]
                    shown = _state(state, own, ranked.ratios(state), dialogue, domain)
                    description["turns"][state.turn]["rankings"][ranking.name] = shown
        return {"row": row, "source": source.name, **description, "cost": self.tracked.cost(source, dialogue)}


def plain(dialogue: Trajectory, domain: Domain) -> dict[str, Any]:
    """Return a dialogue as plain values, without what critics thought of it."""
    calls = dict(dialogue.task.test_cases)
    return {
        "task": _task(dialogue.task, domain),
        "attempt": dialogue.attempt,
        "policy": dialogue.policy,
        "simulator": dialogue.simulator,
        "seed": str(dialogue.seed),  # 63 bits, more than a number of JavaScript holds
        "outcome": dialogue.outcome,
        "error": dialogue.error,
        "reward": finite(dialogue.reward),
        "parts": {name: finite(value) for name, value in dialogue.parts.items()},
        "success": dialogue.success,
        "answer": dialogue.answer,
        "messages": [_message(message, domain) for message in dialogue.messages],
        "turns": _turns(dialogue, domain),
        "tests": [asdict(test) | {"call": calls.get(test.name, "")} for test in dialogue.tests],
        "can_run": can_run(dialogue),
        "has_pages": any(pages_of(dialogue, domain)),
        "extra": dict(dialogue.extra),
    }


def _message(message: Message, domain: Domain) -> dict[str, Any]:
    """A message in pieces that can be shown; `text` is what was written, where the pieces together are not that."""
    pieces = domain.display(message.content)
    as_written = len(pieces) == 1 and pieces[0][1] == message.content
    return {"role": message.role, "pieces": pieces} | ({} if as_written else {"text": message.content})


def _turns(dialogue: Trajectory, domain: Domain) -> list[dict[str, Any]]:
    """The agent's turns: what each cost, and what it was worth."""
    recorded = {turn.message_index: turn for turn in dialogue.turns}
    places = [index for index, message in enumerate(dialogue.messages) if message.role == "assistant"]
    turns, read = list[dict[str, Any]](), 0
    for index, judgment in zip(places, verdicts(dialogue, domain), strict=True):
        turn = recorded.get(index) or AgentTurn(index, dialogue.messages[index].content)
        tokens = turn.prompt_kept + len(turn.prompt_ids)
        # The last token of a reply that goes on may be another: a model's stop id in place of the template's.
        prompt = {"tokens": tokens, "new": len(turn.prompt_ids), "anew": turn.prompt_kept < read - 1}
        read = tokens + len(turn.token_ids)
        thoughts, words = split_thoughts(turn.raw, domain.settings.model.marks)
        turns.append(
            {
                "message": index,
                "thoughts": thoughts or None,
                "raw": None if words == dialogue.messages[index].content else turn.raw,
                **_judged(turn.raw, judgment, domain),
                "prompt": prompt if turn.prompt_ids else None,
                "tokens": len(turn.token_ids),
                "perplexity": turn.perplexity,
                "cut": turn.finish_reason == "length",
                "token_ids": list(turn.token_ids),
                "logprobs": [finite(value) for value in turn.logprobs],
                "rankings": {},
            }
        )
    return turns


def _judged(reply: str, judgment: Judgment | None, domain: Domain) -> dict[str, Any]:
    """What kind of reply it is, and what it was worth."""
    verdict = judgment.verdict if judgment else ""
    return {"kind": domain.reply_type(reply), "verdict": verdict, "fault": is_fault(judgment)}


def pages_of(dialogue: Trajectory, domain: Domain) -> list[str | None]:
    """Return what each message hands over to be looked at (an HTML page), or None."""
    return [file[1] if (file := domain.file_of(message.content)) else None for message in dialogue.messages]


def pictures(dialogue: Trajectory, domain: Domain) -> dict[str, Any]:
    """Render every page of a dialogue: by message the picture and its difference from the reference's."""
    file = domain.file_of(dialogue.task.ground_truth)
    reference = domain.picture(file[1]) if file else None
    shown: dict[str, Any] = {"reference": _address(reference), "pages": {}}
    for index, page in enumerate(pages_of(dialogue, domain)):
        picture = None if page is None else domain.picture(page)
        if picture is not None:
            change = None if reference is None else difference(picture, reference)
            shown["pages"][str(index)] = {"picture": _address(picture), "difference": _address(change)}
    return shown


def difference(picture: bytes, reference: bytes) -> bytes:
    """Return where two pictures (PNG) differ, as a picture: the darker, the more; equal pixels are white."""
    from PIL import Image, ImageChops, ImageOps

    with Image.open(io.BytesIO(picture)) as first, Image.open(io.BytesIO(reference)) as second:
        size = (max(first.width, second.width), max(first.height, second.height))
        canvases = [Image.new("RGB", size, "white") for _ in range(2)]
        for canvas, image in zip(canvases, (first, second), strict=True):
            canvas.paste(image.convert("RGB"))
    change = ImageOps.invert(ImageChops.difference(*canvases).convert("L"))
    target = io.BytesIO()
    change.save(target, "PNG")
    return target.getvalue()


def can_run(dialogue: Trajectory) -> bool:
    """Whether there are hidden tests, and something to run them on."""
    return bool(dialogue.task.test_cases) and dialogue.answer is not None


def _task(task: Task, domain: Domain) -> dict[str, Any]:
    return {
        "id": task.id,
        "request": task.problem_description,
        "reference": task.ground_truth,
        "hidden": task.hidden_information,
        "syntax": domain.syntax,
        "domain": domain.name,
        "answer": domain.shown_labels.answer,
        "tests": [{"name": name, "call": call} for name, call in task.test_cases],
    }


def _state(
    state: RankedState, pairs: Sequence[Preference], ratios: TokenRatios | None, dialogue: Trajectory, domain: Domain
) -> dict[str, Any]:
    """A turn's candidates, best first (`heat`: their tokens, where stored), and pairs as places in that order."""
    earlier = dialogue.messages[: 2 * state.turn + 1]
    spoken = dialogue.turns[state.turn].token_ids if state.turn < len(dialogue.turns) else ()
    stored = ratios.replies if ratios is not None else [None] * len(state.candidates)
    ordered = sorted(zip(state.candidates, stored, strict=True), key=lambda each: -each[0].advantage)
    places = {reply.token_ids: place for place, (reply, _) in enumerate(ordered)}
    candidates = []
    for reply, tokens in ordered:
        judgment = domain.judge(dialogue.task, earlier, reply.text)
        thoughts, words = split_thoughts(reply.text, domain.settings.model.marks)
        candidates.append(
            {
                "text": words,
                "thoughts": thoughts or None,
                **_judged(reply.text, judgment, domain),
                "worth": judgment.worth if judgment else None,
                "count": reply.count,
                "advantage": finite(reply.advantage),
                "said": reply.token_ids == spoken and bool(spoken),
                "chosen": sum(pair.chosen_ids == reply.token_ids for pair in pairs),
                "rejected": sum(pair.rejected_ids == reply.token_ids for pair in pairs),
                "heat": None if tokens is None else shown_tokens(tokens),
            }
        )
    made = [
        [places[pair.chosen_ids], places[pair.rejected_ids], finite(pair.chosen_advantage - pair.rejected_advantage)]
        for pair in pairs
        if pair.chosen_ids in places and pair.rejected_ids in places
    ]
    return {"candidates": candidates, "pairs": made}


def finite(value: float | None) -> float | None:
    """A number as JSON knows them; None for what is none."""
    return value if value is not None and math.isfinite(value) else None


def _address(png: bytes | None) -> str | None:
    """A picture as a data address."""
    return None if png is None else "data:image/png;base64," + base64.b64encode(png).decode()
