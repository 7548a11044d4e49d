"""A domain as an environment of TRL's GRPOTrainer: the model talks to the domain's user by calling tools.

    from trl import GRPOConfig, GRPOTrainer
    from sweetrl.interop.trl import dataset, environment_factory, reward

    options = {"agent": {"max_turns": 6}}                  # settings by section, as sweetrl.domain takes them
    trainer = GRPOTrainer(
        model="Qwen/Qwen3-0.6B",                           # its chat template must know tools
        args=GRPOConfig(max_completion_length=4096),       # tokens of the whole dialogue, with the user's words
        train_dataset=dataset("backend", count=200, seed=7, **options),
        environment_factory=environment_factory("backend", **options),
        reward_funcs=reward,
    )
    trainer.train()

A dialogue is a chain of calls: `say(message)` returns the user's words, `submit(answer)` ends it. What the model writes
outside of the tools reaches nobody, and a dialogue that it just leaves has no answer. All attempts at a row meet the
same user (its `seed`). What a task hides stays in the environments: rows hold the request and the task's place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError, extras
from sweetrl.interop.worlds import World, domain_named
from sweetrl.types import ANSWER_MARKER, OUTPUT_MARKER, Split, Trajectory

with extras():
    from datasets import Dataset

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.rollout.context import Conversation
    from sweetrl.types import Task

ENDED = "The dialogue has ended."
TOOLS = (
    "You talk with the person by two tools; what you write outside of them reaches nobody. `say` tells the person "
    "something and returns their reply. `submit` hands over your answer and ends the dialogue. You have {turns} calls "
    "in all, and the last one counts as your answer whatever it is."
)
COLUMNS: Mapping[str, type] = {"task": str, "split": str, "place": int, "count": int, "seed": int}


# What GRPOTrainer takes


def dataset(
    domain: Domain | str = "backend",
    split: Split = "train",
    count: int | None = None,
    seed: int | None = None,
    *,
    params: str | Path | None = None,
    **settings: Any,
) -> Dataset:
    """Return tasks as rows: `prompt` (system prompt with a word on the tools, request), and the task's place.

    The other columns, `task` (its id), `split`, `place`, `count` and `seed`, are what `reset` finds it by. Without
    `count` and `seed` they are the settings'. The environments need the same domain and settings.
    """
    domain = domain_named("dataset", domain, params, settings)
    agent = domain.settings.agent
    system = f"{domain.system_prompt(agent.prompt).rstrip()}\n\n{TOOLS.format(turns=agent.max_turns)}"
    tasks = World(domain).tasks(split, count, seed)
    among = {"count": len(tasks), "seed": domain.settings.seed if seed is None else seed}
    return Dataset.from_list(
        [
            {
                "prompt": [
                    {"role": "system", "content": system},
                    {"role": "user", "content": task.problem_description},
                ],
                "task": task.id,
                "split": split,
                "place": place,
                **among,
            }
            for place, task in enumerate(tasks)
        ]
    )


def environment_factory(
    domain: Domain | str = "backend", *, params: str | Path | None = None, **settings: Any
) -> Callable[[], DialogueEnvironment]:
    """Return what makes environments: dialogues with the user of one domain, which all of them share.

    `domain` is one, or its name for `sweetrl.domain`, which takes `params` and `settings`. It opens with the first
    dialogue, and closes when the trainer is gone, or with the process.
    """
    world = World(domain_named("environment_factory", domain, params, settings))
    return lambda: DialogueEnvironment(world)


def reward(
    environments: Sequence[Any],
    log_metric: Callable[[str, float], None] | None = None,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """Return the domain's reward of each environment's dialogue; None where it was lost, or is none of a domain.

    A dialogue that goes on counts as one without an answer. Success and how dialogues ended go to the trainer's log.
    Raises UserError where the user or the reward does not work.
    """
    dialogues = [each._score() if isinstance(each, DialogueEnvironment) else None for each in environments]
    scored = [dialogue for dialogue in dialogues if dialogue is not None and dialogue.reward is not None]
    if log_metric is not None and scored:
        log_metric("dialogues/success", sum(dialogue.success for dialogue in scored) / len(scored))
        log_metric("dialogues/answered", sum(dialogue.outcome == "answered" for dialogue in scored) / len(scored))
    if log_extra is not None:
        log_extra("outcome", ["" if dialogue is None else dialogue.outcome for dialogue in dialogues])
    return [None if dialogue is None else dialogue.reward for dialogue in dialogues]


class DialogueEnvironment:
    """One dialogue at a time with a domain's user. Each public method but `reset` is a tool of the model.

    Their docstrings are in Google's style, and are what the model reads: transformers makes the tools' schemas of them.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._task: Task | None = None
        self._talk: Conversation | None = None
        self._scored: Trajectory | None = None
        self._failure: Exception | None = None

    def reset(self, **row: Any) -> None:
        """Begin the dialogue about the task of a row of `dataset`; UserError where it is no such row."""
        for name, kind in COLUMNS.items():
            if type(row.get(name)) is not kind:
                raise UserError(
                    f"the row has no `{name}` of type {kind.__name__}; train on rows of sweetrl.interop.trl.dataset."
                )
        place = {name: row[name] for name in ("place", "split", "count", "seed")}
        request = self._world.task(**place).problem_description
        if row.get("prompt") and request not in (prompt := str(row["prompt"][-1]["content"])):
            request = prompt
        task = self._world.same_task(row["task"], request, **place)
        self._task, self._scored, self._failure = task, None, None
        self._talk = self._world.begin(task, row["seed"], agent="trl")

    def say(self, message: str) -> str:
        """Say something to the person you work for, and get their reply.

        Args:
            message: What the person hears: a question, or what you want to show them.

        Returns:
            The person's reply.
        """
        return self._speak(_text("message", message))

    def submit(self, answer: str) -> str:
        """Hand over your final answer. This ends the dialogue.

        Args:
            answer: The whole answer.

        Returns:
            A note that the dialogue has ended.
        """
        return self._speak(_answering(self._world.domain, _text("answer", answer)))

    def _speak(self, reply: str) -> str:
        if self._talk is None:
            raise UserError("no dialogue has begun; reset first.")
        if self._talk.done:
            raise UserError(ENDED)
        try:
            words = self._talk.say(reply)
        except Exception as error:
            self._failure = error  # the trainer would only tell the model, and go on
            raise
        return ENDED if words is None else words

    def _score(self) -> Trajectory:
        if self._task is None or self._talk is None:
            raise UserError("there is no dialogue to score; reset first.")
        if self._failure is not None:
            raise UserError(f"task {self._task.id}: the user does not work: {self._failure}") from self._failure
        if self._scored is None:
            self._scored = self._world.score(self._task, self._talk)
        return self._scored


def _answering(domain: Domain, answer: str) -> str:
    """Return `answer` as a reply that ends the dialogue: with the marker, unless it has one.

    Where no marker ends dialogues (the domain says when), it is a reply as any other.
    """
    marked = f"{ANSWER_MARKER}\n{answer}"
    ways = (answer, marked, OUTPUT_MARKER + marked)  # the last for an answer with an OUTPUT: of its own
    return next((way for way in ways if domain.answers(domain.visible(way))), answer)


def _text(name: str, value: Any) -> str:
    """Return what the model has passed as `name`: anything that JSON can say, so perhaps no text."""
    if not isinstance(value, str):
        raise UserError(f"`{name}` must be text.")
    return value.encode("utf-8", "replace").decode("utf-8")  # half a pair of surrogates is no text
