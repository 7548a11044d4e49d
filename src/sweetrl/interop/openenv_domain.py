"""Any OpenEnv server as a domain: a task is a reset, a reply is an action, an observation is what the user says.

    # params.yaml
    suite: sweetrl.interop.openenv:OpenEnvDomain
    suite_options:
      url: http://localhost:8000

    env = sweetrl.domain("sweetrl.interop.openenv:OpenEnvDomain", suite_options={"url": "http://localhost:8000"})

A server that lists tasks (OpenEnv's Task API) is reset with split, index and seed, any other with a seed, and that must
decide everything random in the episode: a dialogue that goes on in another session is repeated there. `done` ends the
dialogue (outcome `user_left`), `agent.max_turns` does, too. The reward is the sum of the steps' rewards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from pydantic import Field

from sweetrl.colbench.domain import Domain, Labels
from sweetrl.colbench.prompts import AGENT_PROMPTS, load_prompt
from sweetrl.engines.background import in_thread
from sweetrl.errors import SimulatorError, UserError, UserLeft
from sweetrl.interop.openenv_episodes import Episodes
from sweetrl.interop.openenv_wire import Address, Connection, Description, Refused, ServerFault, count_tasks, describe
from sweetrl.sections import Positive, Rate, Section
from sweetrl.seeds import dialogue_seed
from sweetrl.settings import section
from sweetrl.types import Message, Score, Split, Task, Trajectory

if TYPE_CHECKING:
    from typing import Self

    from sweetrl.settings import Settings

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_PRIVATE = ("metadata", "done", "reward")  # what every observation has beside what it says


class OpenEnvOptions(Section):
    """`suite_options` of the domain."""

    url: str = Field("", description="The server's address, as in http://localhost:8000.")
    key_variable: str = Field("", description="Environment variable with the server's key (a bearer token), if any.")
    action_field: str = Field(
        "",
        description="The action's field that takes the agent's reply as it is. Empty: the only required one; where "
        "there are several (or none), the reply is a JSON object, the whole action.",
    )
    json_actions: bool = Field(False, description="Replies are JSON objects, whatever fields an action has.")
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
    reward_range: tuple[float, float] | None = Field(None, description="The least and the greatest reward, if known.")
    success: float = Field(1.0, description="A task is solved by so much reward.")
    sessions: Positive = Field(
        32, description="Sessions at a time. Further dialogues share them, and repeat their actions as they go on."
    )
    seconds: Rate = Field(60.0, description="Longest wait for one answer of the server.")


class OpenEnvDomain(Domain):
    """The tasks, the user and the reward of an OpenEnv server."""

    name = "openenv"
    reply_characters = 4000

    def configured(self, settings: Settings) -> Self:
        """Return the domain with `settings`; nothing is asked of the server yet."""
        found = super().configured(settings)
        for kept in ("_said", "_prompt"):
            found.__dict__.pop(kept, None)
        found.reward_range = found.choices.reward_range or (float("-inf"), float("inf"))
        return found

    @property
    def choices(self) -> OpenEnvOptions:
        """The domain's options, checked."""
        return section(OpenEnvOptions, self.options, f"{self.spec}: suite_options")

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
        if self.settings.agent.prompt in AGENT_PROMPTS:
            self.system_prompt(self.settings.agent.prompt)  # may need a session, and a server may have a single one
        with self._episodes() as episodes:
            yield episodes

    def _episodes(self) -> Episodes:
        said, choices, address = self._described(), self.choices, self._address()
        act = partial(action_of, said, choices)
        connect = partial(Connection, address, partial(text_of, self._shown(said)))
        return Episodes(connect, act, choices.sessions, choices.seconds)

    def _address(self) -> Address:
        choices = self.choices
        if not choices.url.strip():
            raise UserError(
                f"{self.spec}: `suite_options.url` is empty; name the OpenEnv server, as in http://localhost:8000."
            )
        return Address(choices.url, choices.seconds, choices.key_variable)

    def _described(self) -> Description:
        """What the server says of itself, asked once; UserError where it cannot be had, or options do not fit it."""
        found: Description | None = self.__dict__.get("_said")
        if found is None:
            try:
                found = describe(self._address())
            except ServerFault as fault:
                raise UserError(f"{fault}; start the server, or correct `suite_options.url`.") from fault
            known = _properties(found.observations)
            wanted = self.choices.observation_field
            if wanted and known and wanted not in known:
                raise UserError(
                    f"suite_options.observation_field: an observation has no `{wanted}`, but {', '.join(known)}."
                )
            known = _properties(found.actions)
            wanted = self.choices.action_field
            if wanted and known and wanted not in known:
                raise UserError(f"suite_options.action_field: an action has no `{wanted}`, but {', '.join(known)}.")
            self.__dict__["_said"] = found
        return found

    def _shown(self, said: Description) -> str:
        """The observation's field that the user says; empty: all of it."""
        if self.choices.observation_field:
            return self.choices.observation_field
        texts = [name for name, kind in _properties(said.observations).items() if kind.get("type") == "string"]
        needed = [name for name in texts if name in _required(said.observations)]
        return next((some[0] for some in (needed, texts) if len(some) == 1), "")

    # Tasks

    def tasks(self, split: Split, count: int, seed: int, difficulty: int) -> Iterator[Task]:
        """Yield the first `count` tasks of the server's split, or so many resets with seeds of their own."""
        said, field = self._described(), self.choices.reference_field
        starts = islice(self._starts(said, split, count, seed), count)
        try:
            with self._episodes() as episodes:
                for number, start in enumerate(starts):
                    place = start.get("index", f"{seed}-{number}")
                    found, reference = episodes.begin(start, field)
                    if found.done:
                        raise UserError(f"{self.choices.url}: the episode of {start} ends with its reset.")
                    yield Task(
                        id=f"openenv-{split}-{place}",
                        problem_description=found.text,
                        ground_truth=reference,
                        hidden_information=json.dumps(start, sort_keys=True),
                        suite=self.spec,
                    )
        except ServerFault as fault:
            raise UserError(f"{fault}; see to the server, and run the same command again.") from fault

    def _starts(self, said: Description, split: Split, count: int, seed: int) -> Iterator[dict[str, Any]]:
        """Yield the arguments of resets."""
        fixed = self.choices.reset
        if not said.splits:
            for number in range(count):
                yield {**fixed, "seed": _small(seed, f"{split} {number}")}
            return
        name = self.choices.splits.get(split, split)
        if name not in said.splits:
            raise UserError(
                f"suite_options.splits: the server has no split `{name}`, but {', '.join(said.splits)}; say which is "
                f"`{split}`, as in `splits: {{{split}: {said.splits[0]}}}`."
            )
        for index in range(min(count, count_tasks(self._address(), said.name, name))):
            yield {**fixed, "split": name, "index": index, "seed": _small(seed, f"{split} {index}")}

    def knows(self, task: Task) -> bool:
        """Whether `task` says how the server is to be reset."""
        return bool(_start(task))

    def reference(self, task: Task) -> str:
        """Return the reference (`reference_field`); how the server is reset tells a critic nothing."""
        return task.ground_truth

    # The dialogue

    def system_prompt(self, name_or_path: str) -> str:
        """Return the text of a file, else what a reset says in `system`, else what the server says it is."""
        if name_or_path not in AGENT_PROMPTS:
            return load_prompt(name_or_path)
        said = self._described()
        if "_prompt" not in self.__dict__:
            self.__dict__["_prompt"] = self._greeting(said) or f"{said.words}\n\n{how(said, self.choices)}".strip()
        return str(self.__dict__["_prompt"])

    def _greeting(self, said: Description) -> str:
        """The system prompt that comes with a reset, where there is one."""
        if not said.greets:
            return ""
        start = next(self._starts(said, "train", 1, self.settings.seed), None)
        try:
            with self._episodes() as episodes:
                return "" if start is None else episodes.begin(start)[0].system
        except ServerFault as fault:
            raise UserError(f"{fault}; see to the server, or name a file in `agent.prompt`.") from fault

    def answers(self, visible: str) -> bool:
        """Nothing that the agent says ends the dialogue: the server does."""
        return False

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """Say what the server says to the last of `messages`, in a session for this alone."""
        with self._episodes() as episodes:
            return ServerUser(episodes).reply(task, messages, seed)

    def scripted_user(self, tools: Episodes) -> ServerUser:
        """Return the user who says what the server says."""
        return ServerUser(tools)

    def scorer(self, tools: Episodes) -> EpisodeScorer:
        """Return what adds up the server's rewards."""
        return EpisodeScorer(tools, self.choices.success)

    def evaluation_rules(self) -> list[Any]:
        """Where the server is, and how patiently it is asked, does not change a reward."""
        places = {"url", "key_variable", "sessions", "seconds"}
        return [{name: value for name, value in self.options.items() if name not in places}]


class ServerUser:
    """The user of an OpenEnv server's episodes."""

    name = "openenv"

    def __init__(self, episodes: Episodes) -> None:
        self.episodes = episodes

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """Return the observation that the last of `messages` leads to; UserLeft where it ends the episode."""
        start = _start(task)
        if not start:
            raise SimulatorError(f"task {task.id}: it does not say how the server is reset; make it by the domain")
        actions, heard = _sides(messages)
        try:
            standing = self.episodes.after(start, task.problem_description, actions, heard)
        except ServerFault as fault:
            raise SimulatorError(str(fault)) from fault
        if standing.done:
            raise UserLeft
        return standing.text

    async def answer(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """As `reply`, beside other dialogues."""
        return await in_thread(self.reply, task, messages, seed)


class EpisodeScorer:
    """Scores a dialogue by the sum of its steps' rewards, that of the last reply included."""

    def __init__(self, episodes: Episodes, success: float) -> None:
        self.episodes, self.success = episodes, success

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        """Return one score for each dialogue, in order; UserError where the server fails."""
        return [self._one(dialogue) for dialogue in dialogues]

    def _one(self, dialogue: Trajectory) -> Score:
        task = dialogue.task
        actions, heard = _sides(dialogue.messages)
        if not actions and dialogue.answer:
            actions = [dialogue.answer]  # an answer on its own is the only action
        try:
            standing = self.episodes.after(_start(task), task.problem_description, actions, heard)
        except ServerFault as fault:
            raise UserError(f"task {task.id}: its reward is not to be had: {fault}; see to the server.") from fault
        return Score(standing.total, solved=standing.total >= self.success, semantics="openenv")


# From words to actions and back


def action_of(said: Description, choices: OpenEnvOptions, words: str) -> dict[str, Any]:
    """Return the action that the agent's words are; Refused where they are none."""
    field = _field(said, choices)
    if not field:
        fenced = _FENCED.search(words)
        found = _json(fenced[1] if fenced else words)
        if not isinstance(found, dict):
            raise Refused("it must be a JSON object")
        return found
    kind = _resolved(_properties(said.actions).get(field, {}), said.actions)
    if kind.get("type") not in ("integer", "number", "boolean", "array", "object"):
        return {field: words.strip() if "enum" in kind or "const" in kind else words}
    value = _json(words)
    if value is None:
        raise Refused(f"{field} must be of type {kind['type']}")
    return {field: value}


def text_of(field: str, observation: Mapping[str, Any]) -> str:
    """Return what an observation says: its `field`, or all of it; LookupError where there is no such field."""
    if not field:
        return json.dumps({name: one for name, one in observation.items() if name not in _PRIVATE}, ensure_ascii=False)
    if field not in observation:
        raise LookupError(f"an observation has no field `{field}`")
    found = observation[field]
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def how(said: Description, choices: OpenEnvOptions) -> str:
    """Return how an agent has to write its actions."""
    field = _field(said, choices)
    if not field:
        parts = {name: kind for name, kind in _properties(said.actions).items() if name != "metadata"}
        return f"Each of your replies is an action: a JSON object with these fields: {json.dumps(parts)}"
    kind = _resolved(_properties(said.actions).get(field, {}), said.actions)
    about = str(kind.get("description") or "").strip()
    shape = f" (type {kind['type']})" if kind.get("type") not in (None, "string") else ""
    return f"Each of your replies is an action, as it is: {field}{shape}{': ' if about else '.'}{about}"


def _field(said: Description, choices: OpenEnvOptions) -> str:
    """The field that takes the agent's words; empty: they are JSON."""
    if choices.json_actions or choices.action_field:
        return "" if choices.json_actions else choices.action_field
    needed = [name for name in _required(said.actions) if name != "metadata"]
    return needed[0] if len(needed) == 1 else ""


def _json(words: str) -> Any:
    try:
        return json.loads(words)
    except (ValueError, RecursionError):
        return None


def _properties(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found = schema.get("properties")
    fields = found if isinstance(found, dict) else {}
    return {name: kind for name, kind in fields.items() if isinstance(kind, dict) and name not in _PRIVATE}


def _required(schema: Mapping[str, Any]) -> list[str]:
    found = schema.get("required")
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def _resolved(kind: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A field's schema, taken from the definitions where it only names one."""
    reference, known = kind.get("$ref"), schema.get("$defs")
    if isinstance(reference, str) and isinstance(known, dict):
        found = known.get(reference.rpartition("/")[2])
        return found if isinstance(found, dict) else kind
    return kind


def _sides(messages: Sequence[Message]) -> tuple[list[str], list[str]]:
    """The agent's messages, and the user's between them."""
    actions = [one.content for one in messages if one.role == "assistant"]
    return actions, [one.content for one in messages if one.role == "user"][1 : max(1, len(actions))]


def _start(task: Task) -> dict[str, Any]:
    found = _json(task.hidden_information or "")
    return found if isinstance(found, dict) else {}


def _small(seed: int, what: str) -> int:
    """A seed of 31 bits, which every library takes."""
    return dialogue_seed(seed, f"openenv {what}", 0) >> 32
