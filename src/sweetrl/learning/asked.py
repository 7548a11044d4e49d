"""Candidate replies from a server: asked for state by state, many at a time, and written down as they come.

What a state gets depends on its prompt and seed, not on what is under way beside it. A line of the journal is handed to
the operating system at once, so a killed ranking asks for what is missing only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.engines.background import side_by_side, wait
from sweetrl.errors import EngineError, NoRoom, UserError
from sweetrl.io import append_row, read_rows
from sweetrl.learning.ranking import candidates_seed, distinct_replies
from sweetrl.protocols import AsyncEngine, Chat
from sweetrl.types import Completion, Prompt, Sampling, Trajectory

if TYPE_CHECKING:
    from sweetrl.learning.batches import Row
    from sweetrl.learning.samples import Distinct, Samples

Rows = Sequence[tuple[Trajectory, "Row"]]  # the dialogues of a block, and what the actor saw of each


@dataclass(frozen=True)
class State:
    """An agent's turn (from 0) of dialogue `number` of `block`, and what the server is asked there."""

    block: int
    number: int
    turn: int
    prompt: Prompt


class Asked:
    """The journals of what was asked for, in `folder`: a file for each block of dialogues, a line for each state."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def add(self, state: State, dialogue: Trajectory, replies: Distinct) -> None:
        """Append the replies at a state; UserError where the disk is full."""
        where = {"number": state.number, "task": dialogue.task.id, "attempt": dialogue.attempt, "turn": state.turn}
        listed = [[list(ids), text, count] for ids, (text, count) in replies.items()]
        append_row(self._path(state.block), where | {"replies": listed})

    def read(self, block: int, dialogues: Sequence[Trajectory]) -> dict[tuple[int, int], Distinct]:
        """Return the replies of a block's states by number of dialogue and turn; a broken end is cut off."""
        path = self._path(block)
        found: dict[tuple[int, int], Distinct] = {}

        def take(row: dict[str, Any]) -> None:
            number, turn = int(row["number"]), int(row["turn"])
            if (row["task"], row["attempt"]) != (dialogues[number].task.id, dialogues[number].attempt):
                raise UserError(f"{path}: its replies belong to other dialogues; remove the folder {self.folder}.")
            found[number, turn] = {tuple(ids): (str(text), int(count)) for ids, text, count in row["replies"]}

        read_rows(path, take)
        return found

    def samples(self, block: int, rows: Rows) -> Samples:
        """Return the replies at every turn of a block's dialogues; where none could be had there are none."""
        found = self.read(block, [one for one, _ in rows])
        return [
            [found.get((number, turn), {}) for turn in range(len(row.spans))] for number, (_, row) in enumerate(rows)
        ]

    def _path(self, block: int) -> Path:
        return self.folder / f"{block:06d}.jsonl"


def states_of(block: int, rows: Rows, system: str, seed: int) -> Iterator[State]:
    """Yield every agent's turn of a block's dialogues as a server is asked there: by token ids, or as text.

    The ids are those that the actor saw, the text is what its dialogue was: raw replies, and the user's words.
    """
    for number, (dialogue, row) in enumerate(rows):
        raw = {turn.message_index: turn.raw for turn in dialogue.turns}
        texts = [("system", system), ("user", dialogue.messages[0].content)]
        for turn, (start, _) in enumerate(row.spans):
            prompt_seed = candidates_seed(seed, dialogue, turn)
            # All turns of a dialogue begin alike: one server has them in its cache.
            group = f"{dialogue.task.id} {dialogue.attempt}"
            yield State(block, number, turn, Prompt(row.token_ids[:start], prompt_seed, tuple(texts), group))
            said, heard = 2 * turn + 1, 2 * turn + 2
            texts.append(("assistant", raw.get(said, dialogue.messages[said].content)))
            texts += [("user", one.content) for one in dialogue.messages[heard : heard + 1]]


def with_ids(completion: Completion, chat: Chat) -> Completion:
    """Return a completion with the ids that a model would read: those it came with, else those of its text.

    A text that was broken off has no end of the turn.
    """
    if completion.token_ids:
        return completion
    ids = chat.reply(completion.text)
    return replace(completion, token_ids=ids[:-1] if completion.finish_reason == "length" else ids)


def ask(
    states: Iterable[tuple[State, Trajectory]],
    engine: AsyncEngine,
    chat: Chat,
    sampling: Sampling,
    asked: Asked,
    workers: int,
    lost: Callable[[str], None],
    progress: Callable[[int], None],
) -> None:
    """Ask for `sampling.n` replies at every state (each with its dialogue), `workers` states at a time; fill `asked`.

    A state is taken from `states` when its turn comes.

    `lost` is told the cause where there are none to be had, or none that holds a token; what it raises ends everything,
    and so does a UserError of the engine. A state that leaves no room for a reply has none, and is not lost. `progress`
    is told of every state.
    """

    async def visit(item: tuple[State, Trajectory]) -> None:
        state, dialogue = item
        try:
            found = await engine.ask(state.prompt, sampling)
        except NoRoom:
            found = []
        except EngineError as error:
            lost(str(error))
            progress(1)
            return
        replies = distinct_replies(found if engine.speaks_tokens else [with_ids(one, chat) for one in found])
        if found and not replies:  # of a model that thinks, say, when its tokens end before it speaks
            limit = f"their limit of {sampling.max_new_tokens} tokens"
            lost(f"all replies end at {limit} without a word; raise agent.max_new_tokens")
        else:
            asked.add(state, dialogue, replies)
        progress(1)

    wait(side_by_side(iter(states), visit, workers))
