"""What sections of the settings are made of, and those that say how dialogues are made and measured: servers, user,
reward, browser, collection, evaluation, gate, ingestion.

Those about learning are in sweetrl.config.training; everything else, and how they come together, in
sweetrl.config.settings.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeGuard

from pydantic import BaseModel, ConfigDict, Field

from sweetrl.seeds import MOST

Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, le=MOST)]
Rate = Annotated[float, Field(gt=0.0)]
PassTokens = Positive | Literal["auto"]


class Section(BaseModel):
    """A frozen group of settings that refuses keys it does not know, and numbers that are infinite or none (NaN)."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


def is_section(kind: Any) -> TypeGuard[type[BaseModel]]:
    """Whether a setting's type is a section of settings."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)


class ServerSettings(Section):
    """How servers are reached, and how patiently."""

    urls: str = ""
    """Base URLs of servers of one model, with spaces between (`http://localhost:8000/v1`); the least busy is asked."""
    model: str = Field("", description="Its name at the server (vllm, empty: the first there).")
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the server's key, if there is one."""
    concurrency: Positive = Field(64, description="Concurrent requests, all servers together.")
    timeout_seconds: Rate = Field(300.0, description="Time-out of one attempt at a reply.")
    attempts: Positive = Field(12, description="Attempts at one reply; then its dialogue (`rank`: its state) is lost.")
    backoff_seconds: Rate = 0.5
    """Longest first wait before a retry; it doubles, up to 60 s."""
    gpus: int = Field(0, ge=0)
    """GPUs behind these servers, for the account of GPU-seconds; 0: none, or not yours."""

    @property
    def addresses(self) -> list[str]:
        """The base URLs one by one, without a slash at their ends."""
        return [url.rstrip("/") for url in self.urls.replace(",", " ").split()]


class EngineSettings(ServerSettings):
    """Who produces the agent's tokens in `collect`, `rank` and `evaluate`."""

    kind: Literal["auto", "transformers", "vllm", "openai"] = "auto"
    """`transformers`: in this process. `vllm`: a vLLM server, by token ids, adapters included. `openai`: any chat
    completions server; text only. `auto`: vllm where it is installed, with a GPU and half precision, else
    transformers."""
    command: str = "vllm serve {model}"
    """vllm without `urls`: starts a server of `model.base` ({model}) for the stage; `arguments` and what sweetrl needs
    (port, name, adapters) are put behind it."""
    arguments: str = Field("--enforce-eager", description="Further arguments of that program.")
    start_seconds: Rate = Field(900.0, description="How long that server may take to start.")


class UserServerSettings(ServerSettings):
    """The language model behind the user (kind: llm), at a chat completions server."""

    max_new_tokens: Positive = Field(256, description="Token limit of the user's reply, before it is cut.")
    temperature: float = Field(0.0, ge=0.0, description="Sampling temperature of the user (official: 0).")


Persona = Literal["plain", "terse", "talkative", "impatient", "forgetful", "misunderstanding", "vague"]
DESCRIBED = "described/1"  # the user of that kind, with its version: another one where it says other words


class SimulatorSettings(Section):
    """Who plays the user."""

    kind: str = "scripted"
    """`scripted`, `described`, `llm`, `vision`, `replay`, `human` (docs/real-models.md), or your own, as in
    `my_package.users:Terse` (docs/extending.md)."""
    persona: Persona = "plain"
    """The manner of scripted, described, llm, vision (docs/real-models.md)."""
    options: dict[str, Any] = Field(default_factory=dict, description="Arguments of the user's class.")
    reply_characters: int = Field(0, ge=0)
    """The user's replies are cut here; 0: where the domain says (officially 400, of pages 1000)."""
    prompt: str = ""
    """llm, vision: a shipped prompt's name, or your own text file with {request}, {dialogue} and (llm) {reference} or
    {facts}. Empty: the domain's."""
    recording: str = ""
    """llm, vision: file that keeps answers for reruns. replay: such a file, shards, or an official trajectory file."""
    leaks: Literal["count", "refuse"] = "count"
    """llm: replies with code or quotes of the reference are noted (`count`), or asked for three times in all, until the
    dialogue is lost (`refuse`)."""
    server: UserServerSettings = Field(default_factory=UserServerSettings, description="The language model.")

    def fingerprint(self) -> dict[str, Any]:
        """Return what decides what the user says; where a server is, and how patiently it is asked, does not."""
        parts = self.model_dump(include={"kind", "reply_characters", "options"})
        if self.persona != "plain":
            parts["persona"] = self.persona
        if self.kind == "described":
            parts["kind"] = DESCRIBED
        if self.kind == "replay":
            parts["recording"] = self.recording
        if self.kind in ("llm", "vision"):
            parts |= self.model_dump(include={"prompt", "leaks"})
            parts |= self.server.model_dump(include={"model", "max_new_tokens", "temperature"})
        return parts


class RewardSettings(Section):
    """How an answer is scored."""

    function: str = ""
    """Your own reward, as in `my_package.rewards:brief` (docs/extending.md). Empty: the domain's."""
    turn_cost: float = Field(0.0, ge=0.0)
    """Price of a question, taken off the reward for every agent turn before the last; success does not depend on it
    (docs/concepts.md)."""
    semantics: Literal["fixed", "official", "official-noblacklist"] = "fixed"
    """`fixed`: one namespace, every fence form. `official`: the official evaluator's verdicts. `official-noblacklist`:
    without its banned words."""
    workers: Annotated[int, Field(ge=1, le=256)] = Field(2, description="Sandbox processes that score in parallel.")
    wall_seconds: Rate = Field(2.0, description="Wall-clock limit of one solution, all its tests together.")
    call_seconds: Rate = Field(1.0, description="Wall-clock limit of one test (official: 1).")
    memory_mib: Positive = Field(512, description="Memory limit of one solution.")
    libraries: str = "numpy bs4 soupsieve typing_extensions"
    """Third-party modules that solutions may import."""
    tolerance: float = Field(0.0, ge=0.0)
    """`fixed` semantics: how much floats may differ, relative or absolute; 0 is exact."""
    unsafe: bool = False
    """Score without isolation, too; every result says UNSAFE."""


class BrowserSettings(Section):
    """How pages are rendered (docs/browser.md). Width, height, maximum height and javascript are part of the result."""

    path: str = Field("", description="The program of Chromium; empty: searched for.")
    width: Positive = Field(1366, description="Width of the viewport and of every picture, in CSS pixels.")
    height: Positive = Field(682, description="Height of the viewport and least height of a picture (officially 682).")
    maximum_height: Positive = Field(8000, description="A taller page is cut here, and says so.")
    seconds: Rate = Field(5.0, description="Wall-clock limit of one page; twice as long in the second try, alone.")
    tabs: Positive = Field(4, description="Pages under way at a time.")
    memory_mib: int = Field(2048, ge=0, description="Limit of a browser process's own memory; 0 is none.")
    cache: str = Field(".cache/pages", description="Folder of rendered pages, by HTML and renderer; empty: none.")
    javascript: bool = Field(False, description="Let pages run scripts (still without network); slower.")


class SimilaritySettings(Section):
    """How alike a page is to the reference: the reward of Frontend Design. Its name is part of every result."""

    kind: Literal["layout", "clip"] = "layout"
    """`layout` needs no model; `clip` is the cosine of CLIP's image embeddings, as officially."""
    model: str = Field("openai/clip-vit-base-patch32", description="clip: a model's folder or hub name.")
    view: Literal["official", "squash"] = "official"
    """clip: the page's centre square, as officially, or the whole page made square."""
    device: str = Field("auto", description="clip: `auto` takes a CUDA device where there is one, else the CPU.")
    batch: Positive = Field(16, description="clip: pictures embedded at a time on a GPU; a CPU takes them one by one.")


class CollectSettings(Section):
    """Stage `collect`: offline trajectories of the base policy, or dialogues that others have made."""

    source: Literal["sampled", "files"] = "sampled"
    """`sampled`: the base policy attempts training tasks. `files`: the dialogues in `sources.trajectories`
    (docs/own-dialogues.md)."""
    tasks: Positive = Field(400, description="How many training tasks to attempt.")
    first: int = Field(0, ge=0, description="The first training task of the batch; a retraining advances it.")
    attempts: Positive = Field(4, description="Attempts at each task (k contiguous blocks when exported).")
    batch: Positive = Field(128, description="Dialogues in progress at a time.")
    shard: Positive = 256
    """Dialogues in one Parquet shard; with the engine transformers what a killed run repeats at most."""
    lost_share: Probability = 0.05
    """The stage stops when more than this share of the dialogues (`rank`: of the states asked of a server) is lost;
    finished ones are kept."""
    keep_rewards: bool = False
    """source: files: take official files' rewards, and score nothing. Logs always keep theirs."""
    skip_bad: int = Field(0, ge=0)
    """source: files: how many bad rows may be left out (into bad-rows.jsonl)."""


class EvaluateSettings(Section):
    """Stage `evaluate`: the held-out comparison of the policy before and after training."""

    tasks: Positive = Field(1_000, description="How many test tasks (the first ones).")
    batch: Positive = Field(128, description="Concurrent dialogues, and the dialogues of one shard.")
    lost_share: Probability = 0.05
    """As `collect.lost_share`, of the evaluation."""
    temperature: float | None = Field(None, ge=0.0)
    """Sampling temperature of the agents that are compared and registered; empty: `agent.temperature`, with which
    dialogues are collected and replies ranked."""
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = Field(0.95, description="Level of intervals and of the gate.")
    resamples: Positive = Field(10_000, description="Bootstrap resamples.")
    rival: str = ""
    """Suite frontend: another agent's dialogues about the same tasks (shards or an official file), for the win rate;
    empty: none."""


class GateSettings(Section):
    """The promotion gate (docs/gate.md): what a challenger must show on the test tasks to become champion.

    Differences and margins are in units of the reward.
    """

    power: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.8
    """How surely a difference is to be seen."""
    smallest_difference: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    """The smallest difference of mean reward that is worth seeing."""
    discordance: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    """Until comparisons have shown it, the mean square of the difference of two versions on a task; with rewards of 0
    and 1 the share of tasks that only one of them solves."""
    spending: Literal["inverse-square", "none"] = "inverse-square"
    """`inverse-square`: all comparisons with one champion on the same test tasks share a chance of error of 1 -
    `evaluate.confidence` (docs/gate.md). `none`: each has all of it."""
    fresh_after_comparisons: int = Field(0, ge=0)
    """Retrainings take fresh test tasks after so many comparisons; 0: never."""
    fresh_after_days: int = Field(0, ge=0)
    """The same, so many days after the first comparison."""
    slices: list[str] = ["topic", "held_out"]
    """Columns of reports/results.parquet, or `user`, whose groups of tasks are looked at apart."""
    slice_margin: Annotated[float, Field(gt=0.0)] = 0.1
    """The largest loss of mean reward in a slice that does not matter."""
    slice_rule: Literal["tell", "refuse-loss", "refuse-doubt"] = "tell"
    """What a larger loss means for a challenger that wins (docs/gate.md)."""
    extra_turns: float | None = None
    """So many more agent turns than with the champion a dialogue may take; empty: any."""
    extra_tokens: float | None = None
    """So many more tokens the agent may generate in a dialogue; empty: any."""


class BestOfNSettings(Section):
    """`python -m sweetrl.stages.best_of_n`: the base agent with a critic that picks its replies."""

    tasks: Positive = Field(200, description="How many test tasks (the first ones).")
    max_n: Positive = Field(32, description="The largest N; the others are the powers of two below it.")
    batch: Positive = 16
    """Tasks that advance together, with one dialogue for every critic and N each."""


class IngestSettings(Section):
    """`sweetrl ingest`: what is taken, from where, and how much of it (docs/ingest.md)."""

    source: str = ""
    """`s3://bucket/prefix`, or a folder, of `.jsonl` files; empty: none."""
    kind: Literal["dialogues", "tasks"] = "dialogues"
    """What the files hold: logs of dialogues (docs/own-dialogues.md), or official tasks."""
    window: int = Field(0, ge=0, description="A retraining learns from so many batches, the newest; 0: all.")
    file_mib: Positive = Field(64, description="A larger file is named and not read.")
