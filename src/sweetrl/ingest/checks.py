"""Is a batch of rows from outside fit to be trained on? The rules of `validate` over it, and which rows break them.

A batch is looked at as the pipeline will read it: all its files together, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.colbench.files import named_by_content, read_tasks
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.jsonl import parse_row, raw_lines
from sweetrl.colbench.store import read_task_table
from sweetrl.errors import UserError
from sweetrl.methods.base import find_method
from sweetrl.paths import TEST_TASKS, VALIDATION_TASKS
from sweetrl.rollout.scored import scored
from sweetrl.stages.import_dialogues import Importer, ImportScorer, without_place
from sweetrl.sweet.pairs import DataCounts
from sweetrl.types import Task
from sweetrl.validation.suites import pairs_table, run_tables, trajectories_table
from sweetrl.validation.tables import UNSETTLED, TrajectoryTable, pair_rows

if TYPE_CHECKING:
    from sweetrl.config.settings import Settings

Place = tuple[int, int]  # the number of a file in the batch, from 0, and of a line in it, from 1
HELD_OUT = "it is about a validation or test task, and nothing may be learnt from what is measured on"


class DialogueChecks:
    """Dialogues from elsewhere, as `collect` and `validate` will see them in the project at `root`.

    `docs` takes Great Expectations' pages.
    """

    def __init__(self, settings: Settings, root: Path, docs: Path) -> None:
        recorded = settings.collect.model_copy(update={"keep_rewards": True})  # answers are scored when they are taken
        self.settings, self.docs = settings.model_copy(update={"collect": recorded}), docs
        self.recorded = settings.collect.keep_rewards
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
        system = domain.system_prompt(settings.agent.prompt)
        table = TrajectoryTable(domain, settings.agent.max_turns, system, recorded=self.recorded)
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
            broken = [] if verdict.success else [pair for pair in verdict.broken if pair[0]["row"] in places]
            for key, detail in broken:
                why = f"expectation {verdict.rule}: {says[verdict.rule]}"
                bad.setdefault(places[key["row"]], f"{why}: {detail}" if detail else why)
            if not verdict.success and not broken:
                as_a_whole.append(verdict.sentence.rstrip("."))
        return bad, method.missing_data(data) or "; ".join(as_a_whole)


class TaskChecks:
    """Task files, as the stage `tasks` will read them: the newest first, so that validation tasks stay the same.

    Every task is called after its content, so that no row takes another's id.
    """

    def __init__(self, settings: Settings, root: Path, docs: Path) -> None:
        self.settings, self.domain = settings, load_domain(settings)
        self.test_file = root / settings.tasks.test_file
        if settings.tasks.source != "files" or not self.test_file.is_file():
            raise UserError(
                "params.yaml: `ingest.kind: tasks` needs `tasks.source: files` with a `tasks.test_file` that is there: "
                "new tasks are to train on, and what is measured on stays the same."
            )
        self.held_out = {_asked(task)[:2] for task in read_tasks(self.test_file, self.domain)}

    def faults(self, files: Sequence[Path]) -> tuple[dict[Place, str], str]:
        """Return tasks that cannot be read, are there already, or are measured on, as DialogueChecks does.

        Where there are none, those of the newest file whose tests change from run to run.
        """
        bad, tasks, contents = dict[Place, str](), dict[Place, Task](), set[Task]()
        for index, path in enumerate(files):
            for number, line in raw_lines(path):
                place = index, number
                try:
                    task = self._task(path, number, line)
                except UserError as error:
                    bad[place] = without_place(error, path, number)
                    continue
                if (content := replace(task, id="")) in contents:
                    bad[place] = "the same task is there already"
                elif _asked(task)[:2] in self.held_out:
                    bad[place] = HELD_OUT
                else:
                    contents.add(content)
                    tasks[place] = task
        order = sorted(tasks, key=lambda place: (-place[0], place[1]))  # as `finish` writes them
        cut = max(0, len(order) - self.settings.tasks.validation)
        measured = {_asked(tasks[place]) for place in order[cut:]}
        bad |= {place: HELD_OUT for place in order[:cut] if _asked(tasks[place]) in measured}
        if not bad:
            newest = [place for place in order if place[0] == len(files) - 1]
            tests = self.domain.unsettled_tests([tasks[place] for place in newest])
            bad = {place: UNSETTLED.format(test) for place, test in zip(newest, tests, strict=True) if test}
        return bad, "" if cut else "there are no more tasks than tasks.validation takes"

    def finish(self, files: Sequence[Path], out: Path) -> None:
        """Write train.jsonl and test.jsonl, the two files that the stage reads."""
        (out / "test.jsonl").write_bytes(self.test_file.read_bytes())
        with (out / "train.jsonl").open("w", encoding="utf-8") as train:
            for path in reversed(files):
                for number, line in raw_lines(path):
                    row = parse_row(line, "")
                    name = named_by_content(self._task(path, number, line)).id
                    train.write(json.dumps({**row, "id": name}) + "\n")

    def _task(self, path: Path, number: int, line: bytes) -> Task:
        where = f"{path}: line {number}"
        return self.domain.parse_task(parse_row(line, where), where, "")


def _asked(task: Task) -> tuple[str, ...]:
    """What the stage `tasks` keeps apart in the tasks to train and to measure on."""
    return task.problem_description, task.ground_truth, task.hidden_information or ""
