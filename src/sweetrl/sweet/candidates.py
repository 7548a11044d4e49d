"""Candidate replies at the turns of offline dialogues (stage 2): sampled in this process, or at servers.

At every agent turn o_t of a dialogue, N replies a ~ pi(. | o_t), without c; equal ones are counted. What a state gets
depends on its prompt and seed, not on what is under way beside it.

In this process replies are sampled and rated block by block, by one model with the critic's adapter off and on. Servers
are asked for everything before any critic is loaded: one that a stage has started is gone when the critic needs the
memory. Their replies are written to a journal as they come, and handed to the operating system at once, so a killed
ranking asks for what is missing only.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sweetrl.config.settings import RankingSettings
from sweetrl.console.progress import Meter
from sweetrl.engines.background import side_by_side, wait
from sweetrl.engines.policy import Agent, Policy
from sweetrl.errors import EngineError, NoRoom
from sweetrl.io import append_row, read_rows
from sweetrl.lm.data import Row, encode
from sweetrl.lm.head import without_adapter
from sweetrl.lm.reference import digest_weights
from sweetrl.protocols import AsyncEngine, Chat, Critic, Sampler
from sweetrl.seeds import state_seed
from sweetrl.sweet.tables import Table, write_table
from sweetrl.thoughts import MARKS, Marks, split_thoughts
from sweetrl.types import Candidate, Completion, Prompt, Sampling, Trajectory, Usage

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain

# Part of every key. Raise it when a change of the code gives other replies to equal prompts, weights and seeds.
_FORMAT = 2
# Distinct replies in order of first appearance, for each dialogue and agent's turn; nobody has rated them yet.
Samples = list[list[tuple[Candidate, ...]]]
DialogueRows = Sequence[tuple[Trajectory, Row]]  # the dialogues of a block, and what the actor saw of each
BlockReader = Callable[[], Iterator[list[Trajectory]]]  # reads the dialogues, block by block
State = tuple[int, int, int, Prompt]  # block, number of the dialogue in it, its turn (from 0), its prompt
WAITING = 2  # states under way per concurrent request: while one waits for a retry, another is sent


def sample_candidates(rows: DialogueRows, engine: Sampler, sampling: Sampling, seed: int) -> Samples:
    """Sample `sampling.n` replies at every agent turn of every dialogue.

    Returns them distinct, for each dialogue and turn in order of first appearance.
    """
    prompts = [
        Prompt(row.prompt(turn), candidates_seed(seed, dialogue, turn))
        for dialogue, row in rows
        for turn in range(len(row.spans))
    ]
    completions = iter(engine.sample(prompts, sampling))
    return [[distinct_replies(next(completions)) for _ in row.spans] for _, row in rows]


def candidates_seed(seed: int, dialogue: Trajectory, turn: int) -> int:
    """Return the seed of the candidates at agent turn `turn` (from 0) of `dialogue`; `seed` is the run's."""
    return state_seed(seed, "candidates", dialogue.task.id, dialogue.attempt, turn)


def distinct_replies(completions: Sequence[Completion]) -> tuple[Candidate, ...]:
    """Count equal replies, in order of first appearance; completions without tokens had no room and are none."""
    counts = Counter(completion.token_ids for completion in completions if completion.token_ids)
    texts = {completion.token_ids: completion.text for completion in reversed(completions)}
    return tuple(Candidate(ids, texts[ids], count) for ids, count in counts.items())


def with_ids(completion: Completion, chat: Chat) -> Completion:
    """Return a completion with the ids that a model would read: those it came with, else those of its text.

    A text that was broken off has no end of the turn.
    """
    if completion.token_ids:
        return completion
    ids = chat.reply(completion.text)
    return replace(completion, token_ids=ids[:-1] if completion.finish_reason == "length" else ids)


@dataclass(frozen=True)
class _State:
    """The replies at an agent's turn, as they are kept: turn by turn, dialogue by dialogue."""

    candidates: tuple[Candidate, ...]


class LocalSampler:
    """Candidates of the base in this process (`engine.kind: transformers`).

    `limit` is how many tokens the model can read, `base` the model and its tokenizer. The folder `cache` keeps samples
    for other critics, by what they are a function of: the weights of the bare model, how it is computed, the ids that
    end a reply, the tokenizer, which makes texts of ids, prompts, sampling, seed and `_FORMAT`, the version of the
    sampling code. Removing a file costs time. Replies of servers are kept only for the run that requested them: nobody
    can tell what weights a server has, or which version computes them.
    """

    def __init__(self, settings: RankingSettings, cache: Path | None) -> None:
        from sweetrl.engines.transformers import TransformersEngine
        from sweetrl.lm.adapters import load_base
        from sweetrl.models.load import context_limit

        model = settings.model
        self.base: tuple[Any, Any] | None = load_base(model)
        self.engine = TransformersEngine(
            model.base, threads=model.threads, loaded=self.base, chat_options=model.chat_options
        )
        self.sampler = self.engine.lasting()
        self.chat, self.limit = self.engine.chat, context_limit(self.base[0])
        self.sampling, self.seed, self.cache = settings.agent.sampling(settings.rank.candidates), settings.seed, cache
        self._digest = hashlib.sha256() if cache is None else self._digest_model(*self.base)

    def begin(self, blocks: BlockReader, missing: Callable[[int], bool]) -> None:
        """Nothing: replies are sampled when they are rated."""

    def player(self) -> Agent | None:
        """The agent that plays dialogues on, for a critic that needs it."""
        return Agent(self.engine, self.chat)

    def samples(self, block: int, rows: DialogueRows, critic: Critic) -> Samples:
        """Return the replies at every turn of a block's dialogues."""
        path = None if self.cache is None else self.cache / f"{self._key(rows)}.parquet"
        if path is not None and path.exists():
            states = iter(Table(path, _State))
            return [[next(states).candidates for _ in row.spans] for _, row in rows]
        # The base that samples is the one under the critic's adapter, which is off while it does.
        with without_adapter(getattr(critic, "model", None)):
            samples = sample_candidates(rows, self.sampler, self.sampling, self.seed)
        if path is not None:
            write_table(path, _State, (_State(replies) for turns in samples for replies in turns))
        return samples

    def _digest_model(self, model: Any, tokenizer: Any) -> hashlib._Hash:
        import torch

        device = next(model.parameters()).device.type
        how = (_FORMAT, device, torch.get_num_threads(), torch.__version__, self.engine.stop_ids, repr(tokenizer))
        digest = hashlib.sha256(repr(how).encode())
        if (fast := getattr(tokenizer, "backend_tokenizer", None)) is not None:
            digest.update(fast.to_str().encode())
        digest_weights(digest, model)
        return digest

    def _key(self, rows: DialogueRows) -> str:
        digest = self._digest.copy()
        digest.update(repr((self.sampling, self.seed)).encode())
        for dialogue, row in rows:
            digest.update(repr((f"{dialogue.task.id} {dialogue.attempt}", row.spans)).encode())
            digest.update(np.asarray(row.token_ids, dtype=np.int64).tobytes())
        return digest.hexdigest()[:32]

    def metrics(self, seconds: float) -> dict[str, float]:
        """What it has cost; `seconds` is the time of everything: sampling and the critic share the device."""
        usage = self.engine.usage()
        return {
            "generated_tokens": usage.generated_tokens,
            "seconds_sampling": usage.seconds,
            "devices": usage.devices,
            "gpu_seconds": usage.devices * seconds,
        }


class ServerSampler:
    """Candidates of servers (`engine.kind` vllm or openai), in a journal in `folder`: a file a block, a row a state.

    What is there already is not asked for again. `log` takes the output of a server that is started.
    """

    base: tuple[Any, Any] | None = None

    def __init__(self, env: Domain, settings: RankingSettings, folder: Path | None, log: Path) -> None:
        from sweetrl.engines.chat import ChatFormat
        from sweetrl.models.load import context_of, load_tokenizer

        self.settings, self.log = settings, log
        model = settings.model
        self.chat = ChatFormat(load_tokenizer(model.base), **model.chat_options)
        self.limit = context_of(model.base)
        self.system = env.system_prompt(settings.agent.prompt)
        self.sampling, self.seed = settings.agent.sampling(settings.rank.candidates), settings.seed
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
                    for number, turn, prompt in states_of(rows, self.system, self.seed, self.settings.model.marks):
                        yield (block, number, turn, prompt), (number, turn) in recorded

        started = time.monotonic()
        recorded_states = Counter(recorded for _, recorded in states())
        total, left = recorded_states.total(), recorded_states[False]
        if not left:
            return
        losses = Losses(total, self.settings.collect.lost_share, "states")
        base = Policy(self.settings.model, self.settings.engine)
        with base.serving(self.log) as served, Meter("rank: sampling", total, "states") as meter:
            meter(total - left)
            engine = served.open().engine
            remote = cast("AsyncEngine", engine)

            async def visit(state: State) -> None:
                await self._sample(state, remote, losses.lose)
                meter(1)

            missing_states = (state for state, recorded in states() if not recorded)
            try:
                wait(side_by_side(missing_states, visit, min(WAITING * self.settings.engine.concurrency, left)))
            finally:
                self.usage = engine.usage()
                engine.close()
        self.lost, self.seconds = losses.count, time.monotonic() - started

    async def _sample(self, state: State, engine: AsyncEngine, lost: Callable[[str], None]) -> None:
        """Write down the replies at a state; `lost` takes the cause where none, or none with a token, can be had.

        A state that leaves no room for a reply has none, and is not lost.
        """
        block, number, turn, prompt = state
        try:
            completions = await engine.ask(prompt, self.sampling)
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
        listed = [[list(reply.token_ids), reply.text, reply.count] for reply in replies]
        append_row(self._file(block), {"number": number, "turn": turn, "replies": listed})

    def _file(self, block: int) -> Path:
        return self.journal / f"{block:06d}.jsonl"

    def _recorded(self, block: int) -> dict[tuple[int, int], tuple[Candidate, ...]]:
        """The replies of a block's states by number of dialogue and turn; a broken end is cut off."""
        replies: dict[tuple[int, int], tuple[Candidate, ...]] = {}

        def take(row: dict[str, Any]) -> None:
            distinct = tuple(Candidate(tuple(ids), str(text), int(count)) for ids, text, count in row["replies"])
            replies[int(row["number"]), int(row["turn"])] = distinct

        read_rows(self._file(block), take)
        return replies

    def player(self) -> Agent | None:
        """The agent that plays dialogues on, for a critic that needs it: the base in this process."""
        if self.settings.rank.critic != "rollout-value":
            return None
        return Policy(self.settings.model).open()

    def samples(self, block: int, rows: DialogueRows, critic: Critic) -> Samples:
        """Return the replies at every turn of a block's dialogues; a lost state has none."""
        replies = self._recorded(block)
        return [
            [replies.get((number, turn), ()) for turn in range(len(row.spans))] for number, (_, row) in enumerate(rows)
        ]

    def metrics(self, seconds: float) -> dict[str, float]:
        """What it has cost; `seconds` is the time of everything, the critic's with the model in this process."""
        from sweetrl.models.load import resolve_device
        from sweetrl.rollout.ledger import cost

        devices = int(resolve_device(self.settings.model.device).startswith("cuda"))
        gpu_seconds = self.usage.gpu_seconds + devices * (seconds - self.seconds)
        return cost(self.usage) | {"devices": devices, "gpu_seconds": gpu_seconds, "states_lost": self.lost}


def states_of(rows: DialogueRows, system: str, seed: int, marks: Marks = MARKS) -> Iterator[tuple[int, int, Prompt]]:
    """Yield (number of the dialogue, agent's turn, the prompt there): by token ids, or as text.

    The ids are those that the actor saw, the text is what its dialogue was: its replies without thoughts (`marks`), and
    the user's words.
    """
    for number, (dialogue, row) in enumerate(rows):
        raw = {turn.message_index: turn.raw for turn in dialogue.turns}
        messages = dialogue.messages
        texts = [("system", system), ("user", messages[0].content)]
        for turn in range(len(row.spans)):
            prompt_seed = candidates_seed(seed, dialogue, turn)
            # All turns of a dialogue begin alike: one server has them in its cache.
            group = f"{dialogue.task.id} {dialogue.attempt}"
            yield number, turn, Prompt(row.prompt(turn), prompt_seed, tuple(texts), group)
            reply = 2 * turn + 1
            _, spoken = split_thoughts(raw.get(reply, messages[reply].content), marks)
            texts.append(("assistant", spoken))
            texts += [("user", message.content) for message in messages[reply + 1 : reply + 2]]
