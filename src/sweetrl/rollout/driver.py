"""The loops over dialogues: many advance together, turn by turn, or each on its own as its replies come in.

What a dialogue becomes follows from its task, attempt and seeds alone. Together, equal calls give equal bytes; each on
its own, the order in which replies come in changes nothing but the order in which dialogues end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sweetrl.engines.background import in_thread, side_by_side, wait
from sweetrl.errors import EngineError, NoRoom
from sweetrl.protocols import AsyncEngine, AsyncUserSimulator, UserSimulator
from sweetrl.rollout.dialogue import Dialogue
from sweetrl.types import OUTGROWN, Completion, Sampling

Speak = Callable[[Sequence[Dialogue]], Sequence[Completion]]  # what the agent says in each of the dialogues

# Together


def advance_together(
    dialogues: Sequence[Dialogue],
    speak: Speak,
    simulator: UserSimulator,
    ended: Callable[[Sequence[Dialogue]], None] = lambda dialogues: None,
) -> None:
    """Run all dialogues to their ends, an agent turn of each at a time; `ended` is called with those that end.

    A dialogue that `speak` gives an `error` is lost; its completion is ignored.
    """
    active = [dialogue for dialogue in dialogues if not dialogue.done]
    while active:
        for dialogue, completion in zip(active, speak(active), strict=True):
            if not dialogue.done:  # else `speak` has lost it
                dialogue.take(completion)
        _ask([dialogue for dialogue in active if not dialogue.done], simulator)
        over = [dialogue for dialogue in active if dialogue.done]
        if over:
            ended(over)
        active = [dialogue for dialogue in active if not dialogue.done]


def _ask(dialogues: Sequence[Dialogue], simulator: UserSimulator) -> None:
    """Let the user reply in each of `dialogues`; one who takes time replies in all of them side by side."""
    if isinstance(simulator, AsyncUserSimulator):
        wait(side_by_side(iter(dialogues), lambda dialogue: dialogue.ask_async(simulator), max(1, len(dialogues))))
        return
    for dialogue in dialogues:
        dialogue.ask()


def why_lost(error: EngineError) -> str:
    """Return the `error` of a dialogue in which an engine had no reply."""
    return f"{OUTGROWN}: {error}" if isinstance(error, NoRoom) else str(error)


# Each on its own


def advance_each(
    dialogues: Iterator[Dialogue],
    engine: AsyncEngine,
    simulator: UserSimulator,
    sampling: Sampling,
    ended: Callable[[Dialogue], None],
    workers: int,
) -> None:
    """Run the dialogues to their ends, begun in order with at most `workers` under way.

    `ended` is called with each as it ends, one at a time; it must be quick, and what it raises ends everything. A
    dialogue is lost where the agent or the user has no reply. Raises UserError for what makes all replies impossible.
    """

    async def run(dialogue: Dialogue) -> None:
        await _advance(dialogue, engine, simulator, sampling)
        ended(dialogue)

    wait(side_by_side(dialogues, run, workers))


async def _advance(dialogue: Dialogue, engine: AsyncEngine, simulator: UserSimulator, sampling: Sampling) -> None:
    """Run one dialogue to its end."""
    instant = getattr(simulator, "instant", False)
    while not dialogue.done:
        try:
            (completion,) = await engine.ask(dialogue.prompt(), sampling)
        except EngineError as error:
            dialogue.error = why_lost(error)
            return
        dialogue.take(completion)
        if dialogue.done:
            return
        if isinstance(simulator, AsyncUserSimulator):
            await dialogue.ask_async(simulator)
        elif instant:
            dialogue.ask()
        else:
            await in_thread(dialogue.ask)
