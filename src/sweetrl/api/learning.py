"""Learning from Python: train a critic, rank replies with it, train a policy."""

from __future__ import annotations

import glob
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sweetrl.api.calls import training_call
from sweetrl.api.policy import Policy
from sweetrl.errors import UserError
from sweetrl.progress import Meter, StepProgress
from sweetrl.seeds import check_seed
from sweetrl.settings import Settings, section
from sweetrl.types import Preference, RankedState, Task, TokenRatios, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.learning.ranking import Replay
    from sweetrl.methods.base import Method
    from sweetrl.protocols import Critic, Work
    from sweetrl.types import TrajectoryPair

T = TypeVar("T")


class TrainedCritic:
    """A trained critic: `advantages` of a dialogue's turns, and the protocol that ranking and Best-of-N ask for.

    `adapter` is the folder it lies in.
    """

    def __init__(self, critic: Critic, adapter: Path) -> None:
        self.critic, self.adapter = critic, adapter

    def advantages(self, dialogue: Trajectory) -> list[float]:
        """Return the advantage of each agent turn of `dialogue`: A(o_t, a_t, c) of Eq. 3 for what was said there."""
        from sweetrl.learning.critics import own_replies

        chat = getattr(self.critic, "chat", None)
        (found,) = self.critic.rate([(dialogue, own_replies(dialogue, chat))])
        return [turn[0] for turn in found]

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """Return the advantages of candidate replies (sweetrl.protocols.Critic)."""
        return self.critic.rate(work)


@dataclass(frozen=True)
class Ranking:
    """Candidate replies at the turns of dialogues with their advantages, pairs of them, and successful dialogues.

    Those that `rank` returns are read from a file when they are asked for.
    """

    states: Sequence[RankedState]
    preferences: Sequence[Preference]
    replay: Sequence[Replay]
    metrics: dict[str, float] = field(default_factory=dict)
    token_ratios: Sequence[TokenRatios] = ()
    """What the advantages of the first dialogues are made of (`rank.token_ratios`); none with other critics."""

    def save(self, folder: str | Path) -> None:
        """Write the folder that the stage `rank` writes (data/preferences)."""
        from sweetrl.learning import preferences as files

        out = Path(folder)
        files.write_candidates(out / files.CANDIDATES, self.states)
        files.write_preferences(out / files.PREFERENCES, self.preferences)
        files.write_replay(out / files.SFT_REPLAY, self.replay)
        if self.token_ratios:
            files.write_token_ratios(out / files.TOKEN_RATIOS, self.token_ratios)
        else:
            (out / files.TOKEN_RATIOS).unlink(missing_ok=True)


@dataclass(frozen=True)
class Given:
    """What a method learns from, as it was given to `train` (sweetrl.methods.base.Inputs)."""

    dialogues: Iterable[Trajectory] | None = None
    paired: Sequence[TrajectoryPair] | None = None
    ranking: Ranking | None = None
    training_tasks: Sequence[Task] | None = None
    where: str = "pairs"

    def tasks(self) -> list[Task]:
        """The training tasks."""
        return list(_there(self.training_tasks, "tasks"))

    def trajectories(self) -> Iterable[Trajectory]:
        """The collected dialogues."""
        found: Iterable[Trajectory] = _there(self.dialogues, "dialogues")
        return found

    def pairs(self) -> list[TrajectoryPair]:
        """Pairs of whole dialogues."""
        return list(_there(self.paired, "pairs"))

    def preferences(self) -> tuple[Sequence[Preference], Sequence[Replay]]:
        """Pairs of replies at one state, and successful dialogues."""
        ranking: Ranking = _there(self.ranking, "ranking")
        return ranking.preferences, ranking.replay

    def candidates(self) -> Sequence[RankedState]:
        """All candidate replies of the ranked states."""
        ranking: Ranking = _there(self.ranking, "ranking")
        return ranking.states


def _there(value: Any, name: str) -> Any:
    if value is None:
        raise UserError(f"train: the method needs `{name}`; give them to sweetrl.train.")
    return value


def find_pairs(env: Domain, dialogues: Iterable[Trajectory]) -> list[TrajectoryPair]:
    """Return the pairs of attempts at a task that the critic (and Multi-Turn DPO) learns from (`critic.pairs`)."""
    from sweetrl.learning.pairs import trajectory_pairs

    return trajectory_pairs(dialogues, env.settings.critic.pairs, env.settings.critic.gap)[0]


def train_critic(
    env: Domain,
    policy: Policy,
    dialogues: Iterable[Trajectory],
    pairs: Sequence[TrajectoryPair] | None = None,
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> TrainedCritic:
    """Train the turn-wise advantage (Eqs. 2 and 3) on pairs of `dialogues`; return the critic.

    `policy` is the agent whose base the critic is an adapter on, `options` are settings of section `critic`, `out` the
    folder of the adapter (by default a temporary one): the same call goes on where a killed one was.
    """
    from sweetrl.learning.critic_kinds import fit_critic, make_critic

    settings = settings_for(env, policy, seed, critic=options, rank={"critic": "trained"})
    dialogues = _again_and_again(dialogues)
    configured = env.configured(settings)
    known = find_pairs(configured, dialogues) if pairs is None else pairs
    folder, scratch = _places("critic", out, lambda: training_call(configured, [dialogues, known]))
    progress = StepProgress("train_critic")
    result = fit_critic(configured, dialogues, known, scratch, progress)
    place = _moved(result.adapter, folder)
    return TrainedCritic(make_critic(configured, place), place)


def rank(
    env: Domain,
    policy: Policy,
    critic: Critic | str,
    dialogues: Iterable[Trajectory],
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> Ranking:
    """Sample candidate replies at the turns of a share of `dialogues`, let `critic` rank them, draw pairs of them.

    The replies are those of `policy`, in this process or at its servers.

    `critic` is a trained one, anything with its `rate`, or one that needs no training: `privileged-ratio`,
    `rollout-value`, `judge`, `random` or `oracle` (docs/concepts.md). `options` are settings of section `rank`; `out`
    is a folder to write the ranking to.
    """
    kind = critic if isinstance(critic, str) else "trained"
    settings = settings_for(env, policy, seed, rank={**options, "critic": kind})
    made = None if isinstance(critic, str) else critic
    return rank_replies(
        env.configured(settings), made, _again_and_again(dialogues), out=None if out is None else Path(out)
    )


@dataclass(frozen=True)
class Blocks:
    """The finished blocks of dialogues of a ranking, and which are made here.

    They lie in `folder` (None: nothing is kept), beside what servers have been asked for; `log` takes the output of a
    server that is started. `mine` says which blocks this process makes: others make the rest, in the same folder.
    """

    folder: Path | None = None
    log: Path = Path(".scratch/server.log")
    mine: Callable[[int], bool] | None = None

    def missing(self, number: int) -> bool:
        """Whether block `number` is to be made here."""
        made = self.folder is not None and _block(self.folder, number).exists()
        return not made and (self.mine is None or self.mine(number))

    def states(self, number: int, make: Callable[[], list[RankedState]]) -> Iterable[RankedState]:
        """Return the states of block `number`, made if they are missing; a process that makes a share returns none."""
        from sweetrl.learning import preferences as files

        if self.folder is None:
            return make()
        if self.missing(number):
            files.write_candidates(_block(self.folder, number), make())
        return files.read_candidates(_block(self.folder, number)) if self.mine is None else []


def _block(folder: Path, number: int) -> Path:
    return folder / f"block-{number:06d}.parquet"


def rank_replies(
    env: Domain,
    critic: Critic | Path | None,
    dialogues: Iterable[Trajectory],
    blocks: Blocks | None = None,
    progress: Callable[[int], None] | None = None,
    cache: Path | None = None,
    out: Path | None = None,
) -> Ranking:
    """As `rank`, by `env.settings`; `critic` may be the folder of a trained one, None makes the one in the settings.

    `dialogues` are read several times, a block at a time. The ranking is written to the folder `out` (by default a
    temporary one), and read from there. A stage keeps finished `blocks`. In the folder `cache` replies that were
    sampled in this process are kept for other critics.
    """
    from contextlib import ExitStack, nullcontext
    from itertools import islice

    from sweetrl.api.candidates import AtServers, InProcess
    from sweetrl.evaluation.rollout_value import RolloutValueCritic, open_critic
    from sweetrl.learning import preferences as files
    from sweetrl.learning import ranking
    from sweetrl.learning.token_ratios import RatioSample

    started = time.monotonic()
    settings, blocks = env.settings, blocks or Blocks()
    here = settings.engine.kind == "transformers"
    source = InProcess(env, cache) if here else AtServers(env, blocks.folder, blocks.log)
    chosen = ranking.choose_dialogues(dialogues, settings.rank.share, settings.seed)
    privileged = settings.critic.privileged
    rankable = ranking.rankable(chosen, env, source.chat, source.system, privileged, source.limit)

    def parts() -> Iterator[list[Trajectory]]:
        reading = iter(rankable)
        while part := list(islice(reading, settings.rank.block)):
            yield part

    source.begin(parts, blocks.missing)
    with (
        ExitStack() as stack,
        Meter("rank", len(rankable), "dialogues") if progress is None else nullcontext(progress) as meter,
    ):
        made = critic
        if made is None or isinstance(made, Path):
            made = stack.enter_context(open_critic(env, made, source.player(), source.loaded))
        elif type(made) is TrainedCritic:
            made = made.critic
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sweetrl-rank-")))
        sample = RatioSample(made, settings.rank, len(rankable), blocks.folder or temporary)

        def states() -> Iterator[RankedState]:
            for number, part in enumerate(parts()):
                yield from blocks.states(number, partial(sample.rank, number, partial(source.rank, number, part)))
                meter(len(part))

        if blocks.mine is not None:
            return Ranking(list(states()), [], [])
        folder = out or temporary
        ranked = _written(folder, files.CANDIDATES, files.write_candidates, states(), files.read_candidates)
        found = ranking.choose_preferences(ranked, env, settings.rank, settings.seed)
        preferences = _written(folder, files.PREFERENCES, files.write_preferences, found, files.read_preferences)
        successful = ranking.find_replay(dialogues, source.chat, source.system)
        replay = _written(folder, files.SFT_REPLAY, files.write_replay, successful, files.read_replay)
        ratios: Sequence[TokenRatios] = ()
        if sample.count:
            ratios = _written(folder, files.TOKEN_RATIOS, files.write_token_ratios, sample, files.read_token_ratios)
        else:
            (folder / files.TOKEN_RATIOS).unlink(missing_ok=True)  # of an earlier ranking
    metrics = ranking.ranking_metrics(ranked, preferences, env) | {
        "dialogues": len(rankable),
        "dialogues_too_long": len(chosen) - len(rankable),
        "replay": len(replay),
        **source.metrics(time.monotonic() - started),
        **(made.spent if isinstance(made, RolloutValueCritic) else {}),
    }
    metrics |= ranking.judged_metrics(ranked, rankable, env)
    return Ranking(ranked, preferences, replay, metrics, ratios)


def _written(
    folder: Path,
    name: str,
    write: Callable[[Path, Iterable[T]], None],
    rows: Iterable[T],
    read: Callable[[Path], Sequence[T]],
) -> Sequence[T]:
    """Write `rows` to a file of `folder`, and return them as they are read from there."""
    write(folder / name, rows)
    return read(folder / name)


def train(
    method: str | Method,
    env: Domain,
    policy: Policy,
    *,
    dialogues: Iterable[Trajectory] | None = None,
    pairs: Sequence[TrajectoryPair] | None = None,
    ranking: Ranking | None = None,
    tasks: Sequence[Task] | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> Policy:
    """Train `policy` by `method` (a name, a dotted path, or a Method); return it with the trained adapter.

    Methods learn from different things: `sweet` from a `ranking`, `multi-turn-dpo` from `dialogues` and their `pairs`
    (by default as `critic.pairs` says), `rft` from `dialogues`, `grpo` from `tasks`. `options` are the method's own
    settings, `out` is the folder of the adapter (by default a temporary one): the same call goes on where a killed one
    was.
    """
    from sweetrl.methods.base import TrainingJob
    from sweetrl.plugins import find_method

    chosen = find_method(method) if isinstance(method, str) else method
    own = {chosen.section: options} if chosen.section else {"method_options": options}
    settings = settings_for(env, policy, seed, method=chosen.name, **own)
    configured = env.configured(settings)
    dialogues = None if dialogues is None else _again_and_again(dialogues)
    if pairs is None and dialogues is not None and "pairs" in chosen.needs:
        pairs = find_pairs(configured, dialogues)
    ranked = (None,) if ranking is None else (ranking.states, ranking.preferences, ranking.replay)
    call = partial(training_call, configured, [dialogues, pairs, tasks, *ranked], chosen)
    folder, scratch = _places("policy", out, call)
    inputs = Given(dialogues, pairs, ranking, tasks)
    job = TrainingJob(settings, configured, inputs, scratch, StepProgress(f"train {chosen.name}"))
    return policy.adapted(_moved(chosen.train(job).adapter, folder))


def _again_and_again(dialogues: Iterable[Trajectory]) -> Iterable[Trajectory]:
    """What can be read more than once: a generator as a list, a store as it is."""
    return list(dialogues) if iter(dialogues) is dialogues else dialogues


def settings_for(env: Domain, policy: Policy, seed: int | None, /, **changes: Any) -> Settings:
    """Return the domain's settings with the policy's model and engine, and `changes` of sections or keys."""
    settings = env.settings
    check_seed(seed)
    update: dict[str, Any] = {"model": policy.model, "engine": policy.engine}
    if seed is not None:
        update["seed"] = seed
    for name, values in changes.items():
        known = getattr(settings, name)
        if isinstance(values, dict) and not isinstance(known, dict):
            update[name] = section(type(known), known.model_dump() | values, name)
        else:
            update[name] = values
    return settings.model_copy(update=update)


_kept: list[tempfile.TemporaryDirectory[str]] = []


def _places(name: str, out: str | Path | None, call: Callable[[], str]) -> tuple[Path, Path]:
    """The folder of an adapter, and that of the unfinished work beside it, which only the same `call` takes up.

    Without `out` both go with the process.
    """
    if out is not None:
        folder = Path(out)
        return folder, folder.with_name(f".{folder.name}.{call()}")
    _kept.append(tempfile.TemporaryDirectory(prefix=f"sweetrl-{name}-"))
    return Path(_kept[-1].name) / name, Path(_kept[-1].name) / ".scratch"


def _moved(adapter: Path, folder: Path) -> Path:
    """Put a finished adapter in its place, and remove the unfinished work around it: this call's and earlier ones'."""
    import shutil

    from sweetrl.io import publish

    publish(adapter, folder)
    shutil.rmtree(adapter.parent, ignore_errors=True)
    for left in folder.parent.glob(f".{glob.escape(folder.name)}.*"):
        if re.fullmatch(r"[0-9a-f]{16}", left.name.rpartition(".")[2]) and left.is_dir():  # as `_places` calls them
            shutil.rmtree(left, ignore_errors=True)
    return folder
