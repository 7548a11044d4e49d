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
        most = max((len(one.source.rankings) for one in catalogue.indices), default=0)
        self.ranked = lru_cache(maxsize=max(8, most))(Ranked)  # a study's dialogue has all of its variants' at once

    def read(self, row: int) -> tuple[Trajectory, Domain]:
        """Return dialogue number `row` and its domain; UserError where only its numbers are kept."""
        _, _, one = self.catalogue.read(row)
        if one is None:
            raise UserError(f"row {row}: only the numbers of this dialogue are kept.")
        return one, self.catalogue.domains.of(one.task.suite)

    def describe(self, row: int) -> dict[str, Any]:
        """Return dialogue number `row` as plain values; IndexError where there is none."""
        return self.described(row, *self.catalogue.read(row))

    def every(self) -> Iterator[tuple[int, Trajectory | None, dict[str, Any]]]:
        """Yield every dialogue in the order of rows: its number, itself, and as plain values."""
        for row, (source, task, one) in enumerate(self.catalogue.dialogues()):
            yield row, one, self.described(row, source, task, one)

    def described(self, row: int, source: Source, task: str, one: Trajectory | None) -> dict[str, Any]:
        """Return a dialogue of `source` as plain values; without `one` there is no more than the task's id."""
        if one is None:
            return {"row": row, "source": source.name, "task": {"id": task}, "messages": None}
        domain = self.catalogue.domains.of(one.task.suite)
        found = plain(one, domain)
        for ranking in source.rankings:  # what each critic thought of what else was sampled
            ranked = self.ranked(ranking.folder)
            pairs = ranked.pairs.of(one.task.id, one.attempt)
            for state in ranked.states.of(one.task.id, one.attempt):
                if state.turn < len(found["turns"]):
                    own = [pair for pair in pairs if pair.turn == state.turn]
                    shown = _state(state, own, ranked.ratios(state), one, domain)
                    found["turns"][state.turn]["rankings"][ranking.name] = shown
        return {"row": row, "source": source.name, **found, "cost": self.tracked.cost(source, one)}


def plain(one: Trajectory, domain: Domain) -> dict[str, Any]:
    """Return a dialogue as plain values, without what critics thought of it."""
    return {
        "task": _task(one.task, domain),
        "attempt": one.attempt,
        "policy": one.policy,
        "simulator": one.simulator,
        "seed": str(one.seed),  # 63 bits, more than a number of JavaScript holds
        "outcome": one.outcome,
        "error": one.error,
        "reward": finite(one.reward),
        "parts": dict(one.parts),
        "success": one.success,
        "answer": one.answer,
        "messages": [_message(each, domain) for each in one.messages],
        "turns": _turns(one, domain),
        "tests": [{**asdict(test), "call": dict(one.task.test_cases).get(test.name, "")} for test in one.tests],
        "can_run": can_run(one),
        "has_pages": any(pages_of(one, domain)),
        "extra": dict(one.extra),
    }


def _message(one: Message, domain: Domain) -> dict[str, Any]:
    """A message in pieces that can be shown; `text` is what was written, where the pieces together are not that."""
    pieces = domain.display(one.content)
    whole = len(pieces) == 1 and pieces[0][1] == one.content
    return {"role": one.role, "pieces": pieces} | ({} if whole else {"text": one.content})


def _turns(one: Trajectory, domain: Domain) -> list[dict[str, Any]]:
    """The agent's turns: what each cost, and what it was worth."""
    known = {turn.message_index: turn for turn in one.turns}
    places = [index for index, message in enumerate(one.messages) if message.role == "assistant"]
    found, read = list[dict[str, Any]](), 0
    for index, judgment in zip(places, verdicts(one, domain), strict=True):
        turn = known.get(index) or AgentTurn(index, one.messages[index].content)
        tokens = turn.prompt_kept + len(turn.prompt_ids)
        # The last token of a reply that goes on may be another: a model's stop id in place of the template's.
        prompt = {"tokens": tokens, "new": len(turn.prompt_ids), "anew": turn.prompt_kept < read - 1}
        read = tokens + len(turn.token_ids)
        thoughts, said = split_thoughts(turn.raw, domain.settings.model.marks)
        found.append(
            {
                "message": index,
                "thoughts": thoughts or None,
                "raw": None if said == one.messages[index].content else turn.raw,
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
    return found


def _judged(reply: str, judgment: Judgment | None, domain: Domain) -> dict[str, Any]:
    """What kind of reply it is, and what it was worth."""
    verdict = judgment.verdict if judgment else ""
    return {"kind": domain.reply_type(reply), "verdict": verdict, "fault": is_fault(judgment)}


def pages_of(one: Trajectory, domain: Domain) -> list[str | None]:
    """Return what each message hands over to be looked at (an HTML page), or None."""
    return [found[1] if (found := domain.file_of(message.content)) else None for message in one.messages]


def pictures(one: Trajectory, domain: Domain) -> dict[str, Any]:
    """Render every page of a dialogue: by message the picture and its difference from the reference's."""
    file = domain.file_of(one.task.ground_truth)
    reference = domain.picture(file[1]) if file else None
    shown: dict[str, Any] = {"reference": _address(reference), "pages": {}}
    for index, page in enumerate(pages_of(one, domain)):
        picture = None if page is None else domain.picture(page)
        if picture is not None:
            change = None if reference is None else difference(picture, reference)
            shown["pages"][str(index)] = {"picture": _address(picture), "difference": _address(change)}
    return shown


def difference(one: bytes, other: bytes) -> bytes:
    """Return where two pictures (PNG) differ, as a picture: the darker, the more; equal pixels are white."""
    from PIL import Image, ImageChops, ImageOps

    with Image.open(io.BytesIO(one)) as first, Image.open(io.BytesIO(other)) as second:
        size = (max(first.width, second.width), max(first.height, second.height))
        canvases = [Image.new("RGB", size, "white") for _ in range(2)]
        for canvas, image in zip(canvases, (first, second), strict=True):
            canvas.paste(image.convert("RGB"))
    change = ImageOps.invert(ImageChops.difference(*canvases).convert("L"))
    target = io.BytesIO()
    change.save(target, "PNG")
    return target.getvalue()


def can_run(one: Trajectory) -> bool:
    """Whether there are hidden tests, and something to run them on."""
    return bool(one.task.test_cases) and one.answer is not None


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
    state: RankedState, pairs: Sequence[Preference], ratios: TokenRatios | None, one: Trajectory, domain: Domain
) -> dict[str, Any]:
    """A turn's candidates, best first (`heat`: their tokens, where stored), and pairs as places in that order."""
    earlier = one.messages[: 2 * state.turn + 1]
    said = one.turns[state.turn].token_ids if state.turn < len(one.turns) else ()
    stored = ratios.replies if ratios is not None else [None] * len(state.candidates)
    ordered = sorted(zip(state.candidates, stored, strict=True), key=lambda each: -each[0].advantage)
    places = {reply.token_ids: place for place, (reply, _) in enumerate(ordered)}
    candidates = []
    for reply, tokens in ordered:
        judgment = domain.judge(one.task, earlier, reply.text)
        thoughts, words = split_thoughts(reply.text, domain.settings.model.marks)
        candidates.append(
            {
                "text": words,
                "thoughts": thoughts or None,
                **_judged(reply.text, judgment, domain),
                "worth": judgment.worth if judgment else None,
                "count": reply.count,
                "advantage": finite(reply.advantage),
                "said": reply.token_ids == said and bool(said),
                "chosen": sum(pair.chosen_ids == reply.token_ids for pair in pairs),
                "rejected": sum(pair.rejected_ids == reply.token_ids for pair in pairs),
                "heat": None if tokens is None else shown_tokens(tokens),
            }
        )
    made = [
        [places[pair.chosen_ids], places[pair.rejected_ids], pair.chosen_advantage - pair.rejected_advantage]
        for pair in pairs
        if pair.chosen_ids in places and pair.rejected_ids in places
    ]
    return {"candidates": candidates, "pairs": made}


def finite(value: float | None) -> float | None:
    """A number as JSON knows them; None for what is none."""
    return value if value is not None and math.isfinite(value) else None


def _address(png: bytes | None) -> str | None:
    """A picture as a data address."""
    if png is None:
        return None
    return "data:image/png;base64," + base64.b64encode(png).decode()
