"""Any OpenEnv server as a domain: a task is a reset, a reply is an action, an observation is what the user says.

    # params.yaml
    suite: sweetrl.interop.openenv:OpenEnvDomain
    suite_options:
      url: http://localhost:8000

    env = sweetrl.domain("sweetrl.interop.openenv:OpenEnvDomain", suite_options={"url": "http://localhost:8000"})

A server that lists tasks (OpenEnv's Task API) is reset with split, index and seed, any other with a seed alone, and
that must decide everything random in the episode: a dialogue may go on in another session, where it is repeated.
`done` ends the dialogue (outcome `user_left`), and so does `agent.max_turns`. The reward is the sum of the steps'.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from pydantic import Field

from sweetrl.colbench.domain import Domain, Labels
from sweetrl.colbench.prompts import AGENT_PROMPTS, load_prompt
from sweetrl.engines.background import in_thread
from sweetrl.errors import SimulatorError, UserError, UserLeft
from sweetrl.interop.openenv_episodes import Episodes, Position
from sweetrl.interop.openenv_format import Format
from sweetrl.interop.openenv_wire import Description, Server, ServerError, parse_json
from sweetrl.sections import Positive, Rate, Section
from sweetrl.seeds import dialogue_seed
from sweetrl.settings import section
from sweetrl.types import Message, Score, Split, Task, Trajectory

if TYPE_CHECKING:
    from typing import Self

    from sweetrl.settings import Settings


class OpenEnvOptions(Section):
    """`suite_options` of the domain."""

    url: str = Field("", description="The server's address, as in http://localhost:8000.")
    key_variable: str = Field("", description="Environment variable with the server's key (a bearer token), if any.")
    action_field: str = Field(
        "",
        description="The action's field that takes the agent's reply. Empty: the only required one; where there are "
        "several or none, a reply is the whole action, a JSON object.",
    )
    observation_field: str = Field(
        "",
        description="The observation's field that the user says. Empty: the only required text, else the only text, "
        "else the whole observation as JSON.",
    )
    reference_field: str = Field(
        "", description="Field of the server's state after a reset that is the hidden reference, for the critic."
    )
    splits: dict[str, str] = Field(
        default_factory=dict, description="What the server calls `train` and `test`, where it lists tasks."
    )
    reset: dict[str, Any] = Field(default_factory=dict, description="Further arguments of every reset.")
    reward_range: tuple[float, float] = Field((-math.inf, math.inf), description="The least and the greatest reward.")
    success: float = Field(1.0, description="A task is solved by this reward or more.")
    sessions: Positive = Field(
        32, description="Sessions at a time. Further dialogues share them, and repeat their actions as they go on."
    )
    seconds: Rate = Field(60.0, description="Longest wait for one answer of the server.")


class OpenEnvDomain(Domain):
    """The tasks, the user and the reward of an OpenEnv server."""

    name = "openenv"
    reply_characters = 4000
    choices = OpenEnvOptions()
    _description: Description | None = None

    def configured(self, settings: Settings) -> Self:
        """Return the domain with `settings`; nothing is asked of the server yet."""
        found = super().configured(settings)
        found.choices = section(OpenEnvOptions, found.options, "suite_options")
        found.reward_range, found._description = found.choices.reward_range, None
        return found

    @property
    def labels(self) -> Labels:
        """The reward is the environment's."""
        return Labels(
            answer="last action",
            decided="the environment decided",
            measured=f"Success is a reward of at least {self.choices.success:g}, the mean is taken over tasks",
        )

    # The server

    @contextmanager
    def open(self) -> Iterator[Episodes]:
        """Yield the server's episodes; their sessions end with this."""
        connect, limit, seconds = self._server().connect, self.choices.sessions, self.choices.seconds
        with closing(Episodes(connect, self._format(), limit, seconds)) as episodes:
            yield episodes

    def _server(self) -> Server:
        return Server(self.choices.url, self.choices.seconds, self.choices.key_variable)

    def _described(self) -> Description:
        """What the server says of itself; asked once."""
        if self._description is None:
            with _as_user_error("start the server, or correct `suite_options.url`"):
                self._description = self._server().describe()
        return self._description

    def _format(self) -> Format:
        return Format.of(self._described(), self.choices.action_field, self.choices.observation_field)

    # Tasks

    def tasks(self, split: Split, count: int, seed: int, difficulty: int) -> Iterator[Task]:
        """Yield the first `count` tasks of the server's split, or so many resets with seeds of their own."""
        field = self.choices.reference_field
        with _as_user_error("see to the server, and run the same command again"), self.open() as episodes:
            for number, start in enumerate(self._starts(split, count, seed)):
                position, state = episodes.begin(start, state=bool(field))
                if position.done:
                    raise UserError(f"{self.choices.url}: the episode of {start} ends with its reset; leave it out.")
                if field and field not in state:
                    raise UserError(f"suite_options.reference_field: there is no `{field}`, but {', '.join(state)}.")
                reference = state.get(field, "")
                yield Task(
                    id=f"openenv-{split}-{seed}-{number}",
                    problem_description=position.text,
                    ground_truth=reference if isinstance(reference, str) else json.dumps(reference),
                    hidden_information=json.dumps(start, sort_keys=True),
                    suite=self.spec,
                )

    def _starts(self, split: Split, count: int, seed: int) -> Iterator[dict[str, Any]]:
        """Yield the arguments of resets."""
        known, name = self._described(), self.choices.splits.get(split, split)
        if known.splits:
            if name not in known.splits:
                raise UserError(
                    f"suite_options.splits: the server has no split `{name}`, but {', '.join(known.splits)}; say "
                    f"which one is `{split}`, as in `splits: {{{split}: {known.splits[0]}}}`."
                )
            count = min(count, self._server().count_tasks(known.name, name))
        for number in range(count):
            # A seed of 31 bits, which every library takes.
            start = {**self.choices.reset, "seed": dialogue_seed(seed, f"openenv {split} {number}", 0) >> 32}
            yield {**start, "split": name, "index": number} if known.splits else start

    def knows(self, task: Task) -> bool:
        """Whether `task` says how the server is reset."""
        return bool(_start(task))

    def reference(self, task: Task) -> str:
        """Return the reference (`reference_field`); how the server is reset tells a critic nothing."""
        return task.ground_truth

    # The dialogue

    def system_prompt(self, name_or_path: str) -> str:
        """Return the text of a file, else what the server says it is, and how actions are written."""
        if name_or_path not in AGENT_PROMPTS:
            return load_prompt(name_or_path)
        return f"{self._described().about}\n\n{self._format().instructions}".strip()

    def answers(self, visible: str) -> bool:
        """Nothing that the agent says ends the dialogue: the server does."""
        return False

    def scripted_user(self, tools: Episodes) -> ServerUser:
        """Return the user who says what the server says."""
        return ServerUser(tools)

    def scorer(self, tools: Episodes) -> EpisodeScorer:
        """Return what adds up the server's rewards."""
        return EpisodeScorer(tools, self.choices.success)

    def evaluation_rules(self) -> list[Any]:
        """Return the options but for those that change no reward: where the server is, and how it is asked."""
        return [self.choices.model_dump(mode="json", exclude={"url", "key_variable", "sessions", "seconds"})]


class ServerUser:
    """The user of an OpenEnv server's episodes."""

    name = "openenv"

    def __init__(self, episodes: Episodes) -> None:
        self.episodes = episodes

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """Return the observation that the last of `messages` leads to; UserLeft where it ends the episode."""
        try:
            position = _position(self.episodes, task, messages)
        except ServerError as error:
            raise SimulatorError(str(error)) from error
        if position.done:
            raise UserLeft
        return position.text

    async def answer(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """As `reply`, beside other dialogues."""
        return await in_thread(self.reply, task, messages, seed)


class EpisodeScorer:
    """Scores a dialogue by the sum of its steps' rewards, that of the last reply included."""

    def __init__(self, episodes: Episodes, success: float) -> None:
        self.episodes, self.success = episodes, success

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        """Return one score for each dialogue, in order; UserError where the server fails."""
        return [self._score(dialogue) for dialogue in dialogues]

    def _score(self, dialogue: Trajectory) -> Score:
        messages = dialogue.messages
        if len(messages) == 1 and dialogue.answer:  # an answer alone is the only action
            messages = (*messages, Message("assistant", dialogue.answer))
        with _as_user_error("see to the server, and run the same command again"):
            total = _position(self.episodes, dialogue.task, messages).total
        return Score(total, solved=total >= self.success, semantics="openenv")


def _position(episodes: Episodes, task: Task, messages: Sequence[Message]) -> Position:
    """Return where the episode of a dialogue stands after its last action."""
    start = _start(task)
    if not start:
        raise ServerError(f"task {task.id} does not say how the server is reset, and is no task of this domain")
    actions = [one.content for one in messages if one.role == "assistant"]
    heard = [one.content for one in messages if one.role == "user"]
    return episodes.after(start, heard[: max(1, len(actions))], actions)


def _start(task: Task) -> dict[str, Any]:
    try:
        found = parse_json(task.hidden_information or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def _as_user_error(advice: str) -> Iterator[None]:
    try:
        yield
    except ServerError as error:
        raise UserError(f"{error}; {advice}.") from error
