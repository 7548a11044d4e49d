"""Where a ranking's candidate replies come from: the base in this process, or the servers that the settings name.

In this process replies are sampled and rated block by block, by one model with the critic's adapter off and on. Servers
are asked for everything before any critic is loaded: one that a stage has started is gone when the critic needs the
memory.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sweetrl.api.policy import Policy
from sweetrl.progress import Meter
from sweetrl.types import RankedState, Sampling, Trajectory, Usage

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.engines.make import Agent
    from sweetrl.learning.asked import Rows, State
    from sweetrl.learning.ranking import Room
    from sweetrl.protocols import AsyncEngine, Chat, Critic

Parts = Callable[[], Iterator[list[Trajectory]]]  # reads the dialogues, block by block
WAITING = 2  # states under way for each request that may be: who waits to ask again leaves room for others


class InProcess:
    """Candidates of the base in this process (`engine.kind: transformers`); the folder `cache` keeps them for others.

    `limit` is how many tokens the model can read, `loaded` the model and its tokenizer.
    """

    def __init__(self, env: Domain, cache: Path | None) -> None:
        from sweetrl.engines.chat import ChatFormat
        from sweetrl.engines.transformers import TransformersEngine
        from sweetrl.learning.adapters import load_base
        from sweetrl.learning.samples import SampleCache
        from sweetrl.models import context_limit

        settings = env.settings
        self.loaded: tuple[Any, Any] | None = load_base(settings.model)
        self.chat, self.limit = ChatFormat(self.loaded[1]), context_limit(self.loaded[0])
        self.system, self.sampling, self.seed = _asking(env)
        self.room = _room(env, self.chat, self.limit)
        self.engine = TransformersEngine(settings.model.base, threads=settings.model.threads, loaded=self.loaded)
        self.kept = None if cache is None else SampleCache(cache, *self.loaded, self.engine.stop_ids)

    def begin(self, parts: Parts, missing: Callable[[int], bool]) -> None:
        """Nothing: replies are sampled when they are rated."""

    def player(self) -> Agent | None:
        """Who plays dialogues on for a critic that wants that."""
        from sweetrl.engines.make import Agent

        return Agent(self.engine, self.chat)

    def rank(self, number: int, part: Sequence[Trajectory], critic: Critic) -> list[RankedState]:
        """Return the ranked states of a block's dialogues."""
        from sweetrl.learning.ranking import rank_dialogues

        # The base that samples is the one under the critic's adapter, which is off while it does.
        off: Any = getattr(getattr(critic, "model", None), "disable_adapter", nullcontext)
        return rank_dialogues(
            part, self.engine, critic, self.chat, self.system, self.sampling, self.seed, off, self.kept, self.room
        )

    def metrics(self, seconds: float) -> dict[str, float]:
        """What it has cost; `seconds` is the time of everything: sampling and the critic share the device."""
        usage = self.engine.usage()
        return {
            "generated_tokens": usage.generated_tokens,
            "seconds_sampling": usage.seconds,
            "devices": usage.devices,
            "gpu_seconds": usage.devices * seconds,
        }


class AtServers:
    """Candidates of servers (`engine.kind` vllm or openai), written down in `folder` as they come.

    What is there already is not asked for again. `log` takes the output of a server that is started.
    """

    loaded: tuple[Any, Any] | None = None

    def __init__(self, env: Domain, folder: Path | None, log: Path) -> None:
        from sweetrl.engines.chat import ChatFormat
        from sweetrl.learning.asked import Asked
        from sweetrl.models import context_of, load_tokenizer

        self.settings, self.log = env.settings, log
        base = self.settings.model.base
        self.chat, self.limit = ChatFormat(load_tokenizer(base)), context_of(base)
        self.system, self.sampling, self.seed = _asking(env)
        self.room = _room(env, self.chat, self.limit)
        self._temporary = tempfile.TemporaryDirectory(prefix="sweetrl-rank-") if folder is None else None
        self.asked = Asked(Path(self._temporary.name if self._temporary else folder or "") / "asked")
        self.usage, self.lost, self.seconds = Usage(), 0, 0.0

    def begin(self, parts: Parts, missing: Callable[[int], bool]) -> None:
        """Ask for replies at every agent's turn of the blocks that are `missing`.

        More lost states than `collect.lost_share` are a UserError; running again asks for those again.
        """
        from sweetrl.learning.asked import ask, states_of
        from sweetrl.rollout.scored import Losses

        def wanted() -> Iterator[tuple[State, Trajectory, bool]]:
            """Every state of the missing blocks with its dialogue, and whether its replies are there already."""
            for number, part in enumerate(parts()):
                if missing(number):
                    known = self.asked.read(number, part)
                    for one in states_of(number, self._rows(part), self.system, self.seed):
                        yield one, part[one.number], (one.number, one.turn) in known

        started = time.monotonic()
        there = Counter(known for _, _, known in wanted())
        if not there[False]:
            return
        total = there.total()
        losses = Losses(total, self.settings.collect.lost_share, "states")
        workers = min(WAITING * self.settings.engine.concurrency, there[False])
        with Policy.of(self.settings).serving(self.log) as served, Meter("rank: sampling", total, "states") as meter:
            meter(there[True])
            engine = served.open().engine
            try:
                remote = cast("AsyncEngine", engine)
                open_ones = ((state, dialogue) for state, dialogue, known in wanted() if not known)
                ask(open_ones, remote, self.chat, self.sampling, self.asked, workers, losses.lose, meter)
            finally:
                self.usage = engine.usage()
                engine.close()
        self.lost, self.seconds = losses.count, time.monotonic() - started

    def player(self) -> Agent | None:
        """Who plays dialogues on for the critic that wants that: the base in this process."""
        if self.settings.rank.critic != "rollout-value":
            return None
        return Policy(self.settings.model).open()

    def rank(self, number: int, part: Sequence[Trajectory], critic: Critic) -> list[RankedState]:
        """Return the ranked states of a block's dialogues; a lost state has no candidates."""
        from sweetrl.learning.ranking import rank_sampled

        rows = self._rows(part)
        return rank_sampled(rows, self.asked.samples(number, rows), critic, self.room)

    def metrics(self, seconds: float) -> dict[str, float]:
        """What it has cost; `seconds` is the time of everything, the critic's with the model in this process."""
        from sweetrl.models import resolve_device
        from sweetrl.rollout.ledger import cost

        devices = int(resolve_device(self.settings.model.device).startswith("cuda"))
        gpu_seconds = self.usage.gpu_seconds + devices * (seconds - self.seconds)
        return cost(self.usage) | {"devices": devices, "gpu_seconds": gpu_seconds, "states_lost": self.lost}

    def _rows(self, part: Sequence[Trajectory]) -> Rows:
        from sweetrl.learning.batches import encode

        return [(one, encode(one, self.chat, self.system)) for one in part]


def _asking(env: Domain) -> tuple[str, Sampling, int]:
    """What candidates are asked for with: the agent's system prompt, how to sample, and the run's seed."""
    settings, agent = env.settings, env.settings.agent
    sampling = Sampling(agent.max_new_tokens, agent.temperature, agent.top_p, settings.rank.candidates)
    return env.system_prompt(agent.prompt), sampling, settings.seed


def _room(env: Domain, chat: Chat, limit: int) -> Room:
    """How far dialogues and replies may go for the critic that the settings describe."""
    from sweetrl.learning.ranking import room_for_replies

    privileged = env.settings.critic.privileged
    return room_for_replies(env, chat, env.system_prompt(env.settings.agent.prompt), privileged, limit)
