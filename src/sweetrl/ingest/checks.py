"""Is a batch of rows from outside fit to be trained on? Great Expectations' rules over it, and which rows break them.

A batch is looked at as the pipeline will read it: all its files together, in their order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sweetrl.colbench.files import read_tasks
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.jsonl import parse_row, raw_lines
from sweetrl.errors import UserError
from sweetrl.methods.base import find_method
from sweetrl.rollout.scored import scored
from sweetrl.stages.import_dialogues import Importer, ImportScorer, without_place
from sweetrl.sweet.pairs import DataCounts
from sweetrl.validation.suites import Table, pairs_table, run_tables, tasks_table, trajectories_table
from sweetrl.validation.tables import Rows, TrajectoryTable, pair_rows

if TYPE_CHECKING:
    from sweetrl.config.settings import Settings
    from sweetrl.types import Task

Place = tuple[int, int]  # the number of a file in the batch, from 0, and of a line in it, from 1
NAMELESS = "train-"  # what the stage calls tasks of train.jsonl without an `id`, with their number
HELD_OUT = "it is about a validation or test task, and nothing may be learnt from what is measured on"


class Checks(Protocol):
    """What the rows of one kind must be; `lacks` says after `faults` what a retraining would miss, "" if nothing."""

    lacks: str

    def faults(self, files: Sequence[Path]) -> dict[Place, str]:
        """Return the rows that may not stay, and why; none where all may. Others may follow once these are out."""

    def finish(self, files: Sequence[Path], out: Path) -> None:
        """Put beside the files in `out` what the pipeline needs besides them."""


class DialogueChecks:
    """Dialogues from elsewhere, as `collect` and `validate` will see them; `held_out` are tasks to keep out."""

    def __init__(self, settings: Settings, held_out: Sequence[Task], docs: Path) -> None:
        recorded = settings.collect.model_copy(update={"keep_rewards": True})  # answers are scored when they are taken
        self.settings, self.docs, self.lacks = settings.model_copy(update={"collect": recorded}), docs, ""
        self.domain = load_domain(self.settings)
        self.held_out = held_out

    def faults(self, files: Sequence[Path]) -> dict[Place, str]:
        """Return rows that cannot be read first; where there are none, those that break an expectation."""
        importer, places, bad = Importer(self.domain, files, self.held_out), dict[str, Place](), dict[Place, str]()
        for (path, number, _), dialogue in importer.rows():
            place = files.index(path), number
            places[_name(files, place)] = place
            if isinstance(dialogue, UserError):
                bad[place] = without_place(dialogue, path, number)
            elif dialogue is None:
                bad[place] = HELD_OUT
        return bad or self._broken(importer, places)

    def finish(self, files: Sequence[Path], out: Path) -> None:
        """Nothing more is needed: `collect` reads a folder of files."""

    def _broken(self, importer: Importer, named: dict[str, Place]) -> dict[Place, str]:
        domain, settings, method = self.domain, self.settings, find_method(self.settings.method)
        data = DataCounts(domain, settings.critic, settings.rank, settings.rft)
        table = TrajectoryTable(domain, settings.agent.max_turns, domain.system_prompt(settings.agent.prompt))
        with ExitStack() as stack:
            scorer = ImportScorer(domain, stack)
            dialogues = (dialogue for shard in importer.shards() for dialogue in scored(shard, scorer))
            pairs, _ = data.read(table.watch(dialogues, named))
        rows = table.rows()
        least = settings.validate_.minimum_pairs if "pairs" in method.needs else None
        tables = [trajectories_table(rows, settings.validate_, None, domain.reward_bounds)] if named else []
        bad, whole = _run([*tables, pairs_table(pair_rows(pairs, rows), least)], self.docs, named.get)
        self.lacks = method.missing_data(data) or whole
        return bad


class TaskChecks:
    """Task files, as the stage `tasks` will read them: the newest first, so that validation tasks stay the same."""

    def __init__(self, settings: Settings, root: Path, docs: Path) -> None:
        self.settings, self.docs, self.lacks = settings, docs, ""
        self.domain = load_domain(settings)
        self.test_file = root / settings.tasks.test_file
        if settings.tasks.source != "files" or not self.test_file.is_file():
            raise UserError(
                "params.yaml: `ingest.kind: tasks` needs `tasks.source: files` with a `tasks.test_file` that is there: "
                "new tasks are to train on, and what is measured on stays the same."
            )
        self.test = {_content(task) for task in read_tasks(self.test_file, self.domain)}

    def faults(self, files: Sequence[Path]) -> dict[Place, str]:
        """Return tasks that cannot be read first; where there are none, those that break an expectation."""
        bad, rows, named, known = dict[Place, str](), Rows(), dict[str, Place](), set[str]()
        for place, path, line in _lines(files):
            where = f"{path}: line {place[1]}"
            try:
                row = parse_row(line, where)
                task = self.domain.parse_task(row, where, "")
            except UserError as error:
                bad[place] = without_place(error, path, place[1])
                continue
            content = _content(task)
            if task.id.startswith(NAMELESS) or task.id in known:
                bad[place] = f"another task is, or may be, called {task.id!r}; give every task its own `id`"
            elif content in known:
                bad[place] = "the same task is there already"
            else:
                known |= {task.id, content} - {""}
                name = _name(files, place)
                named[name] = place
                held = "it is a test task" if content in self.test else None
                rows.append({"row": name, "id": task.id or name, "content": content, "held_out": held})
        if bad:
            return bad
        found, whole = _run([tasks_table(rows)] if rows else [], self.docs, named.get)
        few = len(rows) <= self.settings.tasks.validation
        self.lacks = whole or ("there are no more tasks than tasks.validation takes" if few else "")
        return found

    def finish(self, files: Sequence[Path], out: Path) -> None:
        """Write train.jsonl and test.jsonl, the two files that the stage reads."""
        (out / "test.jsonl").write_bytes(self.test_file.read_bytes())
        with (out / "train.jsonl").open("wb") as train:
            for _, _, line in _lines(files, newest_first=True):
                train.write(line.rstrip(b"\n") + b"\n")


def _run(tables: Sequence[Table], docs: Path, place_of: Callable[[str], Place | None]) -> tuple[dict[Place, str], str]:
    """Run the tables; return the rows that break a rule, and what rules about a table as a whole say."""
    bad, whole = dict[Place, str](), list[str]()
    says = {rule.name: rule.says for table in tables for rule in table.rules}
    for verdict in run_tables(tables, docs) if tables else ():
        if verdict.success:
            continue
        places = [place for key, _ in verdict.broken if (place := place_of(key["row"])) is not None]
        for place in places:
            bad.setdefault(place, f"expectation {verdict.rule}: {says[verdict.rule]}")
        if not places:
            whole.append(verdict.sentence.rstrip("."))
    return bad, "; ".join(whole)


def _lines(files: Sequence[Path], newest_first: bool = False) -> Iterator[tuple[Place, Path, bytes]]:
    for index in reversed(range(len(files))) if newest_first else range(len(files)):
        for number, line in raw_lines(files[index]):
            yield (index, number), files[index], line


def _name(files: Sequence[Path], place: Place) -> str:
    return f"{files[place[0]].name} line {place[1]}"


def _content(task: Task) -> str:
    return hashlib.sha256(f"{task.problem_description}\0{task.ground_truth}".encode()).hexdigest()
