"""Candidate replies at the turns of offline dialogues (stage 2): sampled in this process, or at servers.

At every agent turn o_t of a dialogue, N replies a ~ pi(. | o_t), without c; equal ones are counted. What a state gets
depends on its prompt and seed, not on what is under way beside it.

In this process replies are sampled and rated block by block, by one model with the critic's adapter off and on. Servers
are asked for everything before any critic is loaded: one that a stage has started is gone when the critic needs the
memory. Their replies are written to a journal as they come, and handed to the operating system at once, so a killed
ranking asks for what is missing only.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sweetrl.config.settings import EngineSettings, RankingSettings
from sweetrl.console.progress import Meter
from sweetrl.engines.background import side_by_side, wait
from sweetrl.engines.make import Agent, make_agent, serving
from sweetrl.errors import EngineError, NoRoom
from sweetrl.io import append_row, read_rows
from sweetrl.lm.data import Row, encode
from sweetrl.protocols import AsyncEngine, Chat, Critic, Engine
from sweetrl.seeds import state_seed
from sweetrl.sweet.samples import Distinct, SampleCache, Samples
from sweetrl.types import Completion, Prompt, Sampling, Trajectory, Usage

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain

DialogueRows = Sequence[tuple[Trajectory, Row]]  # the dialogues of a block, and what the actor saw of each
BlockReader = Callable[[], Iterator[list[Trajectory]]]  # reads the dialogues, block by block
WAITING = 2  # states under way for each request that may be: who waits to ask again leaves room for others
ROWS = 256  # dialogues that an engine in this process is to have room for


def sample_candidates(rows: DialogueRows, engine: Engine, sampling: Sampling, seed: int) -> Samples:
    """Sample `sampling.n` replies at every agent turn of every dialogue.

    Returns for each dialogue and turn {token ids: (text, count)} in order of first appearance.
    """
    prompts = [
        Prompt(row.token_ids[:start], candidates_seed(seed, dialogue, turn))
        for dialogue, row in rows
        for turn, (start, _) in enumerate(row.spans)
    ]
    completions = iter(engine.sample(prompts, sampling))
    return [[distinct_replies(next(completions)) for _ in row.spans] for _, row in rows]


def candidates_seed(seed: int, dialogue: Trajectory, turn: int) -> int:
    """Return the seed of the candidates at agent turn `turn` (from 0) of `dialogue`; `seed` is the run's."""
    return state_seed(seed, "candidates", dialogue.task.id, dialogue.attempt, turn)


def distinct_replies(completions: Iterable[Completion]) -> Distinct:
    """Count equal replies, in order of first appearance; completions without tokens had no room and are none."""
    distinct: Distinct = {}
    for completion in completions:
        if completion.token_ids:
            text, count = distinct.get(completion.token_ids, (completion.text, 0))
            distinct[completion.token_ids] = (text, count + 1)
    return distinct


def with_ids(completion: Completion, chat: Chat) -> Completion:
    """Return a completion with the ids that a model would read: those it came with, else those of its text.

    A text that was broken off has no end of the turn.
    """
    if completion.token_ids:
        return completion
    ids = chat.reply(completion.text)
    return replace(completion, token_ids=ids[:-1] if completion.finish_reason == "length" else ids)


class LocalSampler:
    """Candidates of the base in this process (`engine.kind: transformers`); the folder `cache` keeps them for others.

    `limit` is how many tokens the model can read, `base` the model and its tokenizer.
    """

    def __init__(self, settings: RankingSettings, cache: Path | None) -> None:
        from sweetrl.engines.chat import ChatFormat
        from sweetrl.engines.transformers import TransformersEngine
        from sweetrl.lm.adapters import load_base
        from sweetrl.models.load import context_limit

        model = settings.model
        self.base: tuple[Any, Any] | None = load_base(model)
        self.chat, self.limit = ChatFormat(self.base[1]), context_limit(self.base[0])
        self.sampling, self.seed = _sampling(settings), settings.seed
        self.engine = TransformersEngine(model.base, threads=model.threads, loaded=self.base)
        self.cache = None if cache is None else SampleCache(cache, *self.base, self.engine.stop_ids)

    def begin(self, blocks: BlockReader, missing: Callable[[int], bool]) -> None:
        """Nothing: replies are sampled when they are rated."""

    def player(self) -> Agent | None:
        """Who plays dialogues on for a critic that wants that."""
        return Agent(self.engine, self.chat)

    def samples(self, block: int, rows: DialogueRows, critic: Critic) -> Samples:
        """Return the replies at every turn of a block's dialogues."""

        def sample() -> Samples:
            # The base that samples is the one under the critic's adapter, which is off while it does.
            adapter_off: Any = getattr(getattr(critic, "model", None), "disable_adapter", nullcontext)
            with adapter_off():
                return sample_candidates(rows, self.engine, self.sampling, self.seed)

        if self.cache is None:
            return sample()
        named = [(f"{dialogue.task.id} {dialogue.attempt}", row) for dialogue, row in rows]
        return self.cache.find(named, self.sampling, self.seed, sample)

    def metrics(self, seconds: float) -> dict[str, float]:
        """What it has cost; `seconds` is the time of everything: sampling and the critic share the device."""
        usage = self.engine.usage()
        return {
            "generated_tokens": usage.generated_tokens,
            "seconds_sampling": usage.seconds,
            "devices": usage.devices,
            "gpu_seconds": usage.devices * seconds,
        }


@dataclass(frozen=True)
class State:
    """An agent's turn (from 0) of dialogue `number` of `block`, and what the server is asked there."""

    block: int
    number: int
    turn: int
    prompt: Prompt


class ServerSampler:
    """Candidates of servers (`engine.kind` vllm or openai), in a journal in `folder`: a file a block, a row a state.

    What is there already is not asked for again. `log` takes the output of a server that is started.
    """

    base: tuple[Any, Any] | None = None

    def __init__(self, env: Domain, settings: RankingSettings, folder: Path | None, log: Path) -> None:
        from sweetrl.engines.chat import ChatFormat
        from sweetrl.models.load import context_of, load_tokenizer

        self.settings, self.log = settings, log
        base = settings.model.base
        self.chat, self.limit = ChatFormat(load_tokenizer(base)), context_of(base)
        self.system = env.system_prompt(settings.agent.prompt)
        self.sampling, self.seed = _sampling(settings), settings.seed
        self._temporary = tempfile.TemporaryDirectory(prefix="sweetrl-rank-") if folder is None else None
        self.journal = Path(self._temporary.name if self._temporary else folder or "") / "asked"
        self.usage, self.lost, self.seconds = Usage(), 0, 0.0

    def begin(self, blocks: BlockReader, missing: Callable[[int], bool]) -> None:
        """Ask for replies at every agent's turn of the blocks that are `missing`.

        More lost states than `collect.lost_share` are a UserError; running again asks for those again.
        """
        from sweetrl.rollout.scored import Losses

        def states() -> Iterator[tuple[State, bool]]:
            """Every state of the missing blocks, and whether its replies are there already."""
            for block, dialogues in enumerate(blocks()):
                if missing(block):
                    rows = [(dialogue, encode(dialogue, self.chat, self.system)) for dialogue in dialogues]
                    recorded = self._recorded(block)
                    for state in states_of(block, rows, self.system, self.seed):
                        yield state, (state.number, state.turn) in recorded

        started = time.monotonic()
        recorded_states = Counter(recorded for _, recorded in states())
        total, left = recorded_states.total(), recorded_states[False]
        if not left:
            return
        losses = Losses(total, self.settings.collect.lost_share, "states")
        engine_settings, model = self.settings.engine, self.settings.model
        with serving(engine_settings, model, self.log) as served, Meter("rank: sampling", total, "states") as meter:
            meter(total - left)
            engine = make_agent(served, model, None, ROWS).engine
            remote = cast("AsyncEngine", engine)

            async def visit(state: State) -> None:
                await self._sample(state, remote, losses.lose)
                meter(1)

            missing_states = (state for state, recorded in states() if not recorded)
            try:
                wait(side_by_side(missing_states, visit, min(WAITING * engine_settings.concurrency, left)))
            finally:
                self.usage = engine.usage()
                engine.close()
        self.lost, self.seconds = losses.count, time.monotonic() - started

    async def _sample(self, state: State, engine: AsyncEngine, lost: Callable[[str], None]) -> None:
        """Write down the replies at a state; `lost` takes the cause where none, or none with a token, can be had.

        A state that leaves no room for a reply has none, and is not lost.
        """
        try:
            completions = await engine.ask(state.prompt, self.sampling)
        except NoRoom:
            completions = []
        except EngineError as error:
            lost(str(error))
            return
        if not engine.speaks_tokens:
            completions = [with_ids(completion, self.chat) for completion in completions]
        replies = distinct_replies(completions)
        if completions and not replies:  # of a model that thinks, say, when its tokens end before it speaks
            limit = f"their limit of {self.sampling.max_new_tokens} tokens"
            lost(f"all replies end at {limit} without a word; raise agent.max_new_tokens")
            return
        listed = [[list(ids), text, count] for ids, (text, count) in replies.items()]
        append_row(self._file(state.block), {"number": state.number, "turn": state.turn, "replies": listed})

    def _file(self, block: int) -> Path:
        return self.journal / f"{block:06d}.jsonl"

    def _recorded(self, block: int) -> dict[tuple[int, int], Distinct]:
        """The replies of a block's states by number of dialogue and turn; a broken end is cut off."""
        replies: dict[tuple[int, int], Distinct] = {}

        def take(row: dict[str, Any]) -> None:
            distinct = {tuple(ids): (str(text), int(count)) for ids, text, count in row["replies"]}
            replies[int(row["number"]), int(row["turn"])] = distinct

        read_rows(self._file(block), take)
        return replies

    def player(self) -> Agent | None:
        """Who plays dialogues on for the critic that wants that: the base in this process."""
        if self.settings.rank.critic != "rollout-value":
            return None
        return make_agent(EngineSettings(), self.settings.model, None, ROWS)

    def samples(self, block: int, rows: DialogueRows, critic: Critic) -> Samples:
        """Return the replies at every turn of a block's dialogues; a lost state has none."""
        replies = self._recorded(block)
        return [
            [replies.get((number, turn), {}) for turn in range(len(row.spans))] for number, (_, row) in enumerate(rows)
        ]

    def metrics(self, seconds: float) -> dict[str, float]:
        """What it has cost; `seconds` is the time of everything, the critic's with the model in this process."""
        from sweetrl.models.load import resolve_device
        from sweetrl.rollout.ledger import cost

        devices = int(resolve_device(self.settings.model.device).startswith("cuda"))
        gpu_seconds = self.usage.gpu_seconds + devices * (seconds - self.seconds)
        return cost(self.usage) | {"devices": devices, "gpu_seconds": gpu_seconds, "states_lost": self.lost}


def _sampling(settings: RankingSettings) -> Sampling:
    """How candidates are sampled."""
    agent = settings.agent
    return Sampling(agent.max_new_tokens, agent.temperature, agent.top_p, settings.rank.candidates)


def states_of(block: int, rows: DialogueRows, system: str, seed: int) -> Iterator[State]:
    """Yield every agent's turn of a block's dialogues as a server is asked there: by token ids, or as text.

    The ids are those that the actor saw, the text is what its dialogue was: raw replies, and the user's words.
    """
    for number, (dialogue, row) in enumerate(rows):
        raw = {turn.message_index: turn.raw for turn in dialogue.turns}
        messages = dialogue.messages
        texts = [("system", system), ("user", messages[0].content)]
        for turn, (start, _) in enumerate(row.spans):
            prompt_seed = candidates_seed(seed, dialogue, turn)
            # All turns of a dialogue begin alike: one server has them in its cache.
            group = f"{dialogue.task.id} {dialogue.attempt}"
            yield State(block, number, turn, Prompt(row.token_ids[:start], prompt_seed, tuple(texts), group))
            reply = 2 * turn + 1
            texts.append(("assistant", raw.get(reply, messages[reply].content)))
            texts += [("user", message.content) for message in messages[reply + 1 : reply + 2]]
