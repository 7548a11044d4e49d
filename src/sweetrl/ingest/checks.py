"""Is a batch of rows from outside fit to be trained on? The rules of `validate` over it, and which rows break them.

A batch is looked at as the pipeline will read it: all its files together, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.colbench.files import read_tasks
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.jsonl import parse_row, raw_lines
from sweetrl.colbench.store import read_task_table
from sweetrl.errors import UserError
from sweetrl.methods.base import find_method
from sweetrl.paths import TEST_TASKS, VALIDATION_TASKS
from sweetrl.rollout.scored import scored
from sweetrl.stages.import_dialogues import Importer, ImportScorer, without_place
from sweetrl.sweet.pairs import DataCounts
from sweetrl.validation.suites import pairs_table, run_tables, trajectories_table
from sweetrl.validation.tables import TrajectoryTable, pair_rows

if TYPE_CHECKING:
    from sweetrl.config.settings import Settings
    from sweetrl.types import Task

Place = tuple[int, int]  # the number of a file in the batch, from 0, and of a line in it, from 1
NAMELESS = "train-"  # what the stage calls tasks of train.jsonl without an `id`, with their number
HELD_OUT = "it is about a validation or test task, and nothing may be learnt from what is measured on"


class DialogueChecks:
    """Dialogues from elsewhere, as `collect` and `validate` will see them in the project at `root`.

    `docs` takes Great Expectations' pages.
    """

    def __init__(self, settings: Settings, root: Path, docs: Path) -> None:
        recorded = settings.collect.model_copy(update={"keep_rewards": True})  # answers are scored when they are taken
        self.settings, self.docs = settings.model_copy(update={"collect": recorded}), docs
        self.domain = load_domain(self.settings)
        tables = [root / path for path in (VALIDATION_TASKS, TEST_TASKS) if (root / path).exists()]
        self.held_out = [task for table in tables for task in read_task_table(table)]

    def faults(self, files: Sequence[Path]) -> tuple[dict[Place, str], str]:
        """Return the rows that may not stay, and why: none where all may; others may follow once these are out.

        Rows that cannot be read come first; where there are none, those that break an expectation. Behind them, what a
        retraining would miss, "" if nothing.
        """
        importer, places, bad = Importer(self.domain, files, self.held_out), dict[str, Place](), dict[Place, str]()
        for (path, number, _), dialogue in importer.rows():
            place = files.index(path), number
            places[f"{path.name} line {number}"] = place
            if isinstance(dialogue, UserError):
                bad[place] = without_place(dialogue, path, number)
            elif dialogue is None:
                bad[place] = HELD_OUT
        if bad:
            return bad, ""

        domain, settings, method = self.domain, self.settings, find_method(self.settings.method)
        data = DataCounts(domain, settings.critic, settings.rank, settings.rft)
        table = TrajectoryTable(domain, settings.agent.max_turns, domain.system_prompt(settings.agent.prompt))
        with ExitStack() as stack:
            scorer = ImportScorer(domain, stack)
            dialogues = (dialogue for shard in importer.shards() for dialogue in scored(shard, scorer))
            pairs, _ = data.read(table.watch(dialogues, places))
        rows = table.rows()
        least = settings.validate_.minimum_pairs if "pairs" in method.needs else None
        tables = [trajectories_table(rows, settings.validate_, None, domain.reward_bounds)] if places else []
        tables.append(pairs_table(pair_rows(pairs, rows), least))
        says = {rule.name: rule.says for each in tables for rule in each.rules}
        as_a_whole = list[str]()
        for verdict in run_tables(tables, self.docs):
            broken = (
                [] if verdict.success else [places[key["row"]] for key, _ in verdict.broken if key["row"] in places]
            )
            for place in broken:
                bad.setdefault(place, f"expectation {verdict.rule}: {says[verdict.rule]}")
            if not verdict.success and not broken:
                as_a_whole.append(verdict.sentence.rstrip("."))
        return bad, method.missing_data(data) or "; ".join(as_a_whole)


class TaskChecks:
    """Task files, as the stage `tasks` will read them: the newest first, so that validation tasks stay the same."""

    def __init__(self, settings: Settings, root: Path, docs: Path) -> None:
        self.settings, self.domain = settings, load_domain(settings)
        self.test_file = root / settings.tasks.test_file
        if settings.tasks.source != "files" or not self.test_file.is_file():
            raise UserError(
                "params.yaml: `ingest.kind: tasks` needs `tasks.source: files` with a `tasks.test_file` that is there: "
                "new tasks are to train on, and what is measured on stays the same."
            )
        self.held_out = {_content(task) for task in read_tasks(self.test_file, self.domain)}

    def faults(self, files: Sequence[Path]) -> tuple[dict[Place, str], str]:
        """Return tasks that cannot be read, are there already, share a name, or are test tasks, as DialogueChecks."""
        bad, ids, contents = dict[Place, str](), set[str](), set[tuple[str, str]]()
        for place, path, line in _lines(files):
            where = f"{path}: line {place[1]}"
            try:
                task = self.domain.parse_task(parse_row(line, where), where, "")
            except UserError as error:
                bad[place] = without_place(error, path, place[1])
                continue
            content = _content(task)
            if task.id.startswith(NAMELESS) or task.id in ids:
                bad[place] = f"another task is, or may be, called {task.id!r}; give every task its own `id`"
            elif content in contents:
                bad[place] = "the same task is there already"
            elif content in self.held_out:
                bad[place] = HELD_OUT
            else:
                ids |= {task.id} - {""}
                contents.add(content)
        few = len(contents) <= self.settings.tasks.validation
        return bad, "there are no more tasks than tasks.validation takes" if few else ""

    def finish(self, files: Sequence[Path], out: Path) -> None:
        """Write train.jsonl and test.jsonl, the two files that the stage reads."""
        (out / "test.jsonl").write_bytes(self.test_file.read_bytes())
        with (out / "train.jsonl").open("wb") as train:
            for path in reversed(files):
                train.writelines(line.rstrip(b"\n") + b"\n" for _, line in raw_lines(path))


def _lines(files: Sequence[Path]) -> Iterator[tuple[Place, Path, bytes]]:
    for index, path in enumerate(files):
        for number, line in raw_lines(path):
            yield (index, number), path, line


def _content(task: Task) -> tuple[str, str]:
    return task.problem_description, task.ground_truth
