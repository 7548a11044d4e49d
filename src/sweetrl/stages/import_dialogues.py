"""Dialogues that others have made, into the project's store: official trajectory files and logs, streamed.

A first pass reads every row and says what is wrong before anything is scored or written. A second one scores the
answers and writes shards, one in memory at a time: a killed run goes on behind its last shard. Attempts at a task are
its dialogues in the files' order, however many there are. Files choose no ids: a task's id ends in a digest of its
content, so that none is taken for another, or for one of the project's own.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from json import dumps
from pathlib import Path

from sweetrl.api.calls import chosen, settings_of, unfinished
from sweetrl.colbench.domain import Domain
from sweetrl.colbench.files import named_by_content, parse_trajectory
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.jsonl import parse_row, raw_lines
from sweetrl.colbench.logs import parse_log
from sweetrl.colbench.scoring import priced
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import Settings
from sweetrl.console.progress import Meter
from sweetrl.errors import UserError
from sweetrl.file_hashes import dvc_hash
from sweetrl.io import digest, publish, write_text
from sweetrl.methods.base import find_method
from sweetrl.plugins import is_plugin, source_of
from sweetrl.protocols import Scorer
from sweetrl.rollout.context import scorer_of
from sweetrl.rollout.scored import scored, summarize
from sweetrl.stages.standalone import check_free, read_any_tasks
from sweetrl.sweet.pairs import DataCounts
from sweetrl.types import Score, Task, Trajectory

logger = logging.getLogger("sweetrl")

BAD_ROWS = "bad-rows.jsonl"
SHOWN = 5  # bad rows named in a message
Row = tuple[Path, int, bytes]  # its file, the number of its line from 1, and the line


def trajectory_files(place: Path) -> list[Path]:
    """Return the file `place`, or the `.jsonl` and `.parquet` files of a folder that are not hidden, by name."""
    inside = sorted(path for path in place.iterdir() if path.name[0] != ".") if place.is_dir() else [place]
    files = [path for path in inside if path.suffix in (".jsonl", ".parquet")]
    if not files or not files[0].exists():
        raise UserError(f"`sources.trajectories: {place}`: name a .jsonl or .parquet file, or a folder with some.")
    return files


class Importer:
    """Reads `files` as the domain's settings say (section `collect`), but for dialogues about `held_out` tasks."""

    def __init__(self, domain: Domain, files: Sequence[Path], held_out: Sequence[Task] = ()) -> None:
        self.domain, self.files = domain, list(files)
        self.settings, self.max_turns = settings_of(domain).collect, domain.settings.agent.max_turns
        self._contents = {(task.problem_description, task.ground_truth) for task in held_out}
        self._requests = {task.problem_description for task in held_out}

    def rows(self) -> Iterator[tuple[Row, Trajectory | UserError | None]]:
        """Yield every row with its dialogue, or with what is wrong with it; None for one about a held-out task.

        A dialogue's task has its id by then, and its attempt a number.
        """
        attempts = Counter[str]()
        for path in self.files:
            for number, line in raw_lines(path):
                row = path, number, line
                try:
                    dialogue = self._parse(*row)
                    content = (dialogue.task.problem_description, dialogue.task.ground_truth)
                    if content in self._contents or (not content[1] and content[0] in self._requests):
                        yield row, None
                    else:
                        task = named_by_content(dialogue.task)
                        attempts[task.id] += 1
                        yield row, replace(dialogue, task=task, attempt=attempts[task.id] - 1)
                except UserError as error:
                    yield row, error

    def survey(self, quarantine: Path) -> Counter[str]:
        """Read all rows, and count what becomes of them; bad ones go to the file `quarantine`, if there are any.

        Raises UserError where there are more than `collect.skip_bad` of them, where more than `collect.lost_share` of
        the dialogues break off, and where nothing is left.
        """
        counts, bad, tasks = Counter[str](), list[tuple[Row, UserError]](), set[str]()
        for row, dialogue in self.rows():
            if isinstance(dialogue, UserError):
                counts["bad_rows"] += 1
                bad += [(row, dialogue)] if len(bad) < max(SHOWN, self.settings.skip_bad) else []
            elif dialogue is None:
                counts["held_out"] += 1
            else:
                tasks.add(dialogue.task.id)
                counts["dialogues"] += 1
                counts["lost"] += dialogue.outcome == "lost"
                counts["recorded_rewards"] += dialogue.reward is not None
        counts["tasks"] = len(tasks)
        if fault := self._fault(counts, [str(error) for _, error in bad[:SHOWN]]):
            more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
            raise UserError(f"{self.files[0]}{more}: {fault}")
        if bad:
            write_text(quarantine, "".join(map(_bad_row, bad)))
        return counts

    def shards(self) -> Iterator[list[Trajectory]]:
        """Yield the dialogues, `collect.shard` at a time; what `survey` has put aside is passed over."""
        dialogues = (dialogue for _, dialogue in self.rows() if isinstance(dialogue, Trajectory))
        while members := list(islice(dialogues, self.settings.shard)):
            yield members

    def _parse(self, path: Path, number: int, line: bytes) -> Trajectory:
        """Return one row as a dialogue; without a reward where its answer is to be scored. A bad one is a UserError."""
        where = f"{path}: line {number}"
        row = parse_row(line, where)
        if "messages" in row:
            dialogue = parse_log(row, where, self.domain)
        elif "dialogue_history" in row or "task" in row:
            dialogue = self._official(parse_trajectory(row, where, self.domain), where)
        else:
            raise UserError(f"{where}: neither a log (`messages`) nor official (`task`); see docs/own-dialogues.md.")
        if len(dialogue.turns) > self.max_turns:
            raise UserError(f"{where}: more than {self.max_turns} turns; raise agent.max_turns, or leave it out.")
        if dialogue.outcome == "max_turns_reached" and len(dialogue.turns) < self.max_turns:
            dialogue = replace(dialogue, outcome="user_left")  # the last reply counts as the answer
        return replace(dialogue, extra={**dialogue.extra, "source": f"{path.name}:{number}"})

    def _official(self, dialogue: Trajectory, where: str) -> Trajectory:
        if dialogue.outcome == "lost":
            return replace(dialogue, reward=None, error="the file's dialogue ends before the agent replies")
        answer = self.domain.final_answer(dialogue.messages)
        if (answer or "").strip() != (dialogue.answer or "").strip():  # files may have stripped it
            raise UserError(f"{where}: `answer` is not what the last message says; correct one, or leave it out.")
        if not self.settings.keep_rewards:
            return replace(dialogue, answer=answer, reward=None, solved=None)
        if dialogue.reward is None:
            raise UserError(f"{where}: there is no `reward`; add it, or leave out collect.keep_rewards.")
        return replace(dialogue, answer=answer)

    def _fault(self, counts: Counter[str], reasons: Sequence[str]) -> str:
        """What is wrong with the files as a whole, "" where nothing is."""
        bad, allowed, taken, lost = counts["bad_rows"], self.settings.skip_bad, counts["dialogues"], counts["lost"]
        if bad > allowed:
            more = [f"and {bad - len(reasons)} more"] if bad > len(reasons) else []
            listed = "".join(f"\n- {why}" for why in [*reasons, *more])
            limit = f"{allowed} may be left out (--skip-bad, collect.skip_bad)"
            return f"bad rows: {bad}, of which {limit}; mend them, or allow more:{listed}"
        if not taken:
            return f"there are no dialogues to take ({counts['held_out']} are about held-out tasks); name other files."
        if lost > self.settings.lost_share * taken:
            limit = f"more than the share of {self.settings.lost_share:g} (collect.lost_share)"
            return f"{lost} of {taken} dialogues end before the agent replies, {limit}; take them out, or allow more."
        return ""


def import_dialogues(
    importer: Importer, store: TrajectoryStore, mine: Callable[[int], bool] | None = None
) -> dict[str, int]:
    """Write what `importer` takes to `store`, shard by shard, with rewards; return counts of what became of the rows.

    Shards that are there already are left alone; with `mine` only those that it says yes to are made. Bad rows that
    may be skipped lie in the store's folder, in `bad-rows.jsonl`.
    """
    logger.info("import: reading %d files ...", len(importer.files))
    counts, present = importer.survey(store.folder / BAD_ROWS), store.shards()
    with ExitStack() as stack, Meter("import", counts["dialogues"], "dialogues") as meter:
        stack.enter_context(store.growing(counts["dialogues"], alone=mine is None))
        scorer = ImportScorer(importer.domain, stack)
        for index, members in enumerate(importer.shards()):
            if index not in present and (mine is None or mine(index)):
                store.write_shard(index, scored(members, scorer))
            meter(len(members))
    return {name: counts[name] for name in ("dialogues", "tasks", "recorded_rewards", "held_out", "bad_rows")}


class ImportScorer:
    """Keeps the rewards that dialogues have; the domain, opened when it is first needed, scores the others."""

    def __init__(self, domain: Domain, stack: ExitStack) -> None:
        self.domain, self.stack = domain, stack
        self._scorer: Scorer | None = None

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        """Return one score for each dialogue, in order."""
        unscored = [dialogue for dialogue in dialogues if dialogue.reward is None]
        if unscored and self._scorer is None:
            self._scorer = scorer_of(self.domain, self.stack.enter_context(self.domain.open()))
        fresh = iter(self._scorer.score(unscored) if self._scorer and unscored else ())
        return [next(fresh) if dialogue.reward is None else self._recorded(dialogue) for dialogue in dialogues]

    def _recorded(self, dialogue: Trajectory) -> Score:
        score = Score(dialogue.reward or 0.0, solved=dialogue.solved)
        turn_cost = self.domain.settings.reward.turn_cost
        return priced(dialogue, score, turn_cost) if turn_cost else score


def import_standalone(
    settings: Settings, files: Sequence[Path], out: Path, held_out: Sequence[Path]
) -> dict[str, object]:
    """Put the dialogues of `files` into the new folder `out`; return their counts, and what data methods still need.

    `held_out` are task files or tables: dialogues about their tasks are left out. Unfinished work lies beside `out`.
    """
    check_free(out)
    domain = load_domain(settings)
    for path in [*files, *held_out]:
        if not path.is_file():
            raise UserError(f"{path}: there is no such file; name trajectory files or logs (.jsonl or .parquet).")
    tasks = [task for path in held_out for task in read_any_tasks(path, domain)]
    tree = settings.model_dump(mode="json", by_alias=True)
    sections = ("suite", "suite_options", "agent", "reward", "browser", "similarity", "collect")
    code = [source_of(group, name) for group, name in chosen(settings).items() if is_plugin(group, name)]
    read = [(str(path), dvc_hash(path)) for path in [*files, *held_out, *code]]
    key = digest([{name: tree[name] for name in sections}, *read])
    with unfinished(out, key) as scratch:
        store = TrajectoryStore(scratch)
        counts = import_dialogues(Importer(domain, files, tasks), store)
        metrics = summarize(store)
        data = DataCounts(domain, settings.critic, settings.rank, settings.rft)
        data.read(store)
        publish(scratch, out)
    least = settings.validate_.minimum_pairs
    missing = {f"for {name}": _missing(name, data, least) or "enough" for name in ("rft", "multi-turn-dpo", "sweet")}
    means = {name: metrics[name] for name in ("success", "reward", "turns")}
    return {**counts, **means, "pairs": data.pairs, **missing, "written": str(out)}


def without_place(error: UserError, path: Path, number: int) -> str:
    """Return what is wrong with a row without the file and line that it begins with."""
    return str(error).removeprefix(f"{path}: line {number}").removeprefix(": ").rstrip(".")


def _bad_row(bad: tuple[Row, UserError]) -> str:
    (path, number, line), error = bad
    facts = {"file": str(path), "line": number, "why": without_place(error, path, number)}
    return dumps({**facts, "row": line.decode("utf-8", "replace").rstrip("\n")}, ensure_ascii=False) + "\n"


def _missing(name: str, data: DataCounts, least: int) -> str | None:
    """What there is too little of for a method, as `validate` finds it."""
    method = find_method(name)
    if (why := method.missing_data(data)) or "pairs" not in method.needs or data.pairs >= least:
        return why
    return f"{data.pairs} preference pairs are fewer than {least} (validate.minimum_pairs); bring more dialogues"
