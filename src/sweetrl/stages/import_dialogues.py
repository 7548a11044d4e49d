"""Dialogues that others have made, into the project's store: official trajectory files and logs, streamed.

A first pass reads every row and says what is wrong before anything is scored or written; it keeps a few bytes for each
row, and a name for each task. A second one scores the answers and writes shards, one in memory at a time: a killed run
goes on behind its last shard. Attempts at a task are its dialogues in the files' order, however many there are.
"""

from __future__ import annotations

import logging
import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.api.calls import settings_of
from sweetrl.colbench.files import parse_trajectory, task_digest
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.jsonl import parse_row, raw_lines
from sweetrl.colbench.logs import parse_log
from sweetrl.colbench.scoring import PricedScorer
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.console.progress import Meter
from sweetrl.errors import UserError
from sweetrl.file_hashes import dvc_hash
from sweetrl.io import digest, publish, write_text
from sweetrl.methods.base import find_method
from sweetrl.rollout.context import scorer_of
from sweetrl.rollout.scored import scored, summarize
from sweetrl.stages.scratch import alone
from sweetrl.stages.standalone import check_free, read_any_tasks
from sweetrl.sweet.pairs import DataCounts
from sweetrl.types import Score, Task, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.config.settings import Settings
    from sweetrl.protocols import Scorer

logger = logging.getLogger("sweetrl")

BAD_ROWS = "bad-rows.jsonl"
SHOWN = 5  # bad rows named in a message
BAD, HELD_OUT, BLANK = -1, -2, -3  # instead of an attempt's number


@dataclass
class Survey:
    """What the first pass found: for every line of every file its dialogue's attempt, or why it is not taken."""

    lines: list[array[int]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def taken(self) -> int:
        """How many dialogues are taken."""
        return self.counts["dialogues"]


def trajectory_files(place: Path) -> list[Path]:
    """Return the file that `sources.trajectories` names, or the `.jsonl` and `.parquet` files of a folder, by name.

    Hidden files are passed over: `sweetrl serve --dialogues` keeps its journal in one.
    """
    inside = sorted(path for path in place.iterdir() if path.name[0] != ".") if place.is_dir() else [place]
    files = [path for path in inside if path.suffix in (".jsonl", ".parquet")]
    if not files or not files[0].exists():
        raise UserError(
            f"params.yaml: `collect.source` is `files`, but `sources.trajectories: {place}` is no .jsonl or .parquet "
            "file and no folder with some; name the trajectory files there."
        )
    return files


class Importer:
    """Reads `files` for a domain, whose settings say what is taken (section `collect`).

    Dialogues about a task of `held_out` are left out: nothing may be learnt from what is measured on.
    """

    def __init__(self, domain: Domain, files: Sequence[Path], held_out: Sequence[Task] = ()) -> None:
        self.domain, self.files = domain, list(files)
        self.settings, self.max_turns = settings_of(domain).collect, domain.settings.agent.max_turns
        self._contents = {(task.problem_description, task.ground_truth) for task in held_out}
        self._requests = {task.problem_description for task in held_out}

    def survey(self, quarantine: Path) -> Survey:
        """Read all rows; bad ones go to the file `quarantine`, if there are any.

        Raises UserError where there are more than `collect.skip_bad` of them, where more than `collect.lost_share` of
        the dialogues break off, and where nothing is left.
        """
        survey, naming, reasons, bad_rows = Survey(), Naming(), list[str](), list[str]()
        for path in self.files:
            survey.lines.append(codes := array("i"))
            for number, line in raw_lines(path):
                try:
                    codes.append(self._look(path, number, line, survey, naming))
                except UserError as error:
                    codes.append(BAD)
                    survey.counts["bad_rows"] += 1
                    why = str(error)
                    reasons += [why] if len(reasons) < SHOWN else []
                    if len(bad_rows) < self.settings.skip_bad:
                        why = why.removeprefix(f"{path}: line {number}").removeprefix(": ")
                        row = line.decode("utf-8", "replace").rstrip("\n")
                        facts = {"file": str(path), "line": number, "why": why, "row": row}
                        bad_rows.append(dumps(facts, ensure_ascii=False) + "\n")
        survey.counts["tasks"] = naming.tasks
        self._check(survey, reasons)
        if bad_rows:
            write_text(quarantine, "".join(bad_rows))
        return survey

    def read(self, survey: Survey, is_needed: Callable[[int], bool]) -> Iterator[tuple[int, list[Trajectory]]]:
        """Yield (number, dialogues) of each shard that is needed; lines of others are not even parsed."""
        size, position, members = self.settings.shard, 0, list[Trajectory]()
        for path, codes in zip(self.files, survey.lines, strict=True):
            for (number, line), code in zip(raw_lines(path), codes, strict=False):
                if code < 0:
                    continue
                index = position // size
                if is_needed(index):
                    dialogue = self.parse(path, number, line)
                    task = replace(dialogue.task, id=survey.names[task_digest(dialogue.task)])
                    members.append(replace(dialogue, task=task, attempt=code))
                position += 1
                if members and (position % size == 0 or position == survey.taken):
                    yield index, members
                    members = []

    def _look(self, path: Path, number: int, line: bytes, survey: Survey, naming: Naming) -> int:
        """What becomes of a line: the number of its dialogue's attempt, or why it is not taken."""
        if not line.decode("utf-8", "replace").strip():
            return BLANK
        dialogue = self.parse(path, number, line)
        if self.is_held_out(dialogue.task):
            survey.counts["held_out"] += 1
            return HELD_OUT
        attempt = naming.attempt(dialogue.task, path, number, survey.names)
        survey.counts["dialogues"] += 1
        survey.counts["lost"] += dialogue.outcome == "lost"
        survey.counts["recorded_rewards"] += dialogue.reward is not None
        return attempt

    def is_held_out(self, task: Task) -> bool:
        """Whether the task is one of those that nothing may be learnt from."""
        content = (task.problem_description, task.ground_truth)
        return content in self._contents or (not content[1] and content[0] in self._requests)

    def parse(self, path: Path, number: int, line: bytes) -> Trajectory:
        """Return one row as a dialogue; without a reward where its answer is to be scored. A bad one is a UserError."""
        where = f"{path}: line {number}"
        row = parse_row(line, where)
        if "messages" in row:
            one = parse_log(row, where, self.domain)
        elif "dialogue_history" in row or "task" in row:
            one = self._official(parse_trajectory(row, where, self.domain), where)
        else:
            raise UserError(
                f"{where}: this is neither a logged dialogue (`messages`) nor an official trajectory (`task` and "
                "`dialogue_history`); see docs/own-dialogues.md."
            )
        if len(one.turns) > self.max_turns:
            raise UserError(
                f"{where}: the assistant has {len(one.turns)} turns, at most {self.max_turns} are allowed; raise "
                "agent.max_turns in params.yaml, or leave the row out."
            )
        if one.outcome == "max_turns_reached" and len(one.turns) < self.max_turns:
            one = replace(one, outcome="user_left")  # nobody replied any more: the last reply counts as the answer
        return replace(one, extra={**one.extra, "source": f"{path.name}:{number}"})

    def _official(self, one: Trajectory, where: str) -> Trajectory:
        if one.outcome == "lost":
            return replace(one, reward=None, error="the file's dialogue ends before the agent replies")
        answer = self.domain.final_answer(one.messages)
        if (answer or "").strip() == (one.answer or "").strip():
            one = replace(one, answer=answer)  # files may have stripped it
        elif answer != one.answer:
            raise UserError(
                f"{where}: `answer` is not what the dialogue's last message says; correct one of the two, or leave the "
                "row out."
            )
        if not self.settings.keep_rewards:
            return replace(one, reward=None, solved=None)
        if one.reward is None:
            raise UserError(
                f"{where}: the row has no `reward`; add it, or let answers be scored (without collect.keep_rewards)."
            )
        return one

    def _check(self, survey: Survey, reasons: Sequence[str]) -> None:
        count, allowed, lost = survey.counts["bad_rows"], self.settings.skip_bad, survey.counts["lost"]
        if count > allowed:
            listed = "".join(f"\n- {why}" for why in reasons)
            more = f"\n- and {count - len(reasons)} more" if count > len(reasons) else ""
            raise UserError(
                f"{_places(self.files)}: bad rows: {count}, of which {allowed} may be left out (--skip-bad, "
                f"collect.skip_bad); mend them, or allow more:{listed}{more}"
            )
        if not survey.taken:
            raise UserError(
                f"{_places(self.files)}: there are no dialogues to take ({survey.counts['held_out']} are about "
                "held-out tasks); name other files."
            )
        if lost > self.settings.lost_share * survey.taken:
            raise UserError(
                f"{_places(self.files)}: {lost} of {survey.taken} dialogues end before the agent replies, more than "
                f"the share of {self.settings.lost_share:g} (collect.lost_share); take them out, or allow more."
            )


class Naming:
    """Gives every task its name and counts the attempts at it."""

    def __init__(self) -> None:
        self._attempts: Counter[int] = Counter()
        self._seen: dict[str, str] = {}
        self._unnamed: Counter[str] = Counter()

    @property
    def tasks(self) -> int:
        """How many tasks there are."""
        return len(self._attempts)

    def attempt(self, task: Task, path: Path, number: int, names: dict[int, str]) -> int:
        """Return the number of this attempt at `task`, which is named in `names`; a taken name is a UserError."""
        content = task_digest(task)
        if content not in names:
            name = task.id or self._next(path.stem)
            if name in self._seen:
                raise UserError(
                    f"{path}: line {number}: another task is called {name!r} in {self._seen[name]}, with other words; "
                    "give every task a name of its own."
                )
            names[content], self._seen[name] = name, f"{path}: line {number}"
        self._attempts[content] += 1
        return self._attempts[content] - 1

    def _next(self, stem: str) -> str:
        """The next free name of a task without one."""
        while True:
            name = f"{stem}-{self._unnamed[stem]:05d}"
            self._unnamed[stem] += 1
            if name not in self._seen:
                return name


def import_dialogues(
    importer: Importer, store: TrajectoryStore, mine: Callable[[int], bool] | None = None
) -> dict[str, int]:
    """Write what `importer` takes to `store`, shard by shard, with rewards; return counts of what became of the rows.

    Shards that are there already are left alone; with `mine` only those that it says yes to are made. Bad rows that
    may be skipped lie in the store's folder, in `bad-rows.jsonl`.
    """
    logger.info("import: reading %s ...", _places(importer.files))
    survey = importer.survey(store.folder / BAD_ROWS)
    present, size = store.shards(), importer.settings.shard

    def is_needed(index: int) -> bool:
        return index not in present and (mine is None or mine(index))

    with ExitStack() as stack, Meter("import", survey.taken, "dialogues") as meter:
        meter(sum(min(size, survey.taken - index * size) for index in present))
        rewards = Rewards(importer.domain, stack)
        for index, members in importer.read(survey, is_needed):
            store.write_shard(index, rewards.given(members))
            meter(len(members))
    return {name: survey.counts[name] for name in ("dialogues", "tasks", "recorded_rewards", "held_out", "bad_rows")}


class Rewards:
    """Scores the dialogues that have no reward yet, by the domain, which is opened for the first of them."""

    def __init__(self, domain: Domain, stack: ExitStack) -> None:
        self.domain, self.stack = domain, stack
        self._scorer: Scorer | None = None
        cost = domain.settings.reward.turn_cost
        self._recorded: Scorer = PricedScorer(_Recorded(), cost) if cost else _Recorded()

    def given(self, members: Sequence[Trajectory]) -> list[Trajectory]:
        """Return `members` with rewards, in order."""
        old = [one for one in members if one.reward is not None]
        new = [one for one in members if one.reward is None]
        done = {False: iter(scored(old, self._recorded)), True: iter(self._score(new))}
        return [next(done[one.reward is None]) for one in members]

    def _score(self, members: Sequence[Trajectory]) -> list[Trajectory]:
        if not members:
            return []
        if self._scorer is None:
            self._scorer = scorer_of(self.domain, self.stack.enter_context(self.domain.open()))
        return scored(members, self._scorer)


class _Recorded:
    """Takes the rewards that the dialogues have."""

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        """Return each dialogue's own reward, in order."""
        return [Score(one.reward or 0.0, solved=one.solved) for one in dialogues]


def import_standalone(
    settings: Settings, files: Sequence[Path], out: Path, held_out: Sequence[Path]
) -> dict[str, object]:
    """Put the dialogues of `files` into the new folder `out`; return what they came to, and what methods lack there.

    `held_out` are task files or tables: dialogues about their tasks are left out. Unfinished work lies beside `out`.
    """
    check_free(out)
    domain = load_domain(settings)
    for path in [*files, *held_out]:
        if not path.is_file():
            raise UserError(f"{path}: there is no such file; name trajectory files or logs (.jsonl or .parquet).")
    tasks = [task for path in held_out for task in read_any_tasks(path, domain)]
    tree = settings.model_dump(mode="json", by_alias=True)
    deciding = {name: tree[name] for name in ("suite", "suite_options", "agent", "reward", "similarity", "collect")}
    key = digest([deciding, *((str(path), dvc_hash(path)) for path in [*files, *held_out])])
    scratch = out.parent / f".{out.name}.{key}"
    store = TrajectoryStore(scratch)
    with alone(scratch):
        check_free(out)  # by now another process may have made it
        counts = import_dialogues(Importer(domain, files, tasks), store)
        metrics = summarize(store)
        data = DataCounts(domain, settings.critic, settings.rank, settings.rft)
        data.read(store)
        publish(scratch, out)
        shutil.rmtree(scratch)
    lacks = {
        f"for {name}": _lacks(name, data, settings.validate_.minimum_pairs) or "enough"
        for name in ("rft", "multi-turn-dpo", "sweet")
    }
    means = {name: metrics[name] for name in ("success", "reward", "turns")}
    return {**counts, **means, "pairs": data.pairs, **lacks, "written": str(out)}


def _lacks(name: str, data: DataCounts, least: int) -> str | None:
    """What a method lacks, as `validate` finds it."""
    method = find_method(name)
    if why := method.missing_data(data):
        return why
    if "pairs" in method.needs and data.pairs < least:
        return f"{data.pairs} preference pairs are fewer than {least} (validate.minimum_pairs); bring more dialogues"
    return None


def _places(files: Sequence[Path]) -> str:
    return ", ".join(map(str, files[:3])) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
