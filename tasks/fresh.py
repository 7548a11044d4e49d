"""Fresh test tasks by schedule: after so many comparisons, or days, retrainings take those behind (`tasks.test_first`).

What the old ones have served for is known from the comparisons that the registry keeps with the versions
(sweetrl.tracking.comparisons), so that all machines agree, also where the retraining that took the fresh ones has lost
and its params.yaml was never merged.
"""

from __future__ import annotations

import time
from calendar import timegm
from pathlib import Path

from sweetrl.config.settings import Settings
from sweetrl.file_hashes import file_hash
from sweetrl.io import digest
from sweetrl.tracking.comparisons import entries
from sweetrl.tracking.registry import Registry, answering

DAY = 86_400.0


def drawing(settings: Settings, root: Path) -> str:
    """Return what the whole sequence of test tasks is known by, from which `tasks.test_first` cuts its part.

    A file of test tasks is known by its content: a batch may hold a copy of the one before under another name.
    """
    tasks = settings.tasks
    path = root / tasks.test_file
    content = file_hash(path) if tasks.test_file and path.is_file() else tasks.test_file
    wanted = [tasks.source, content, tasks.difficulty]
    return digest(settings.suite, settings.suite_options, settings.seed, *wanted)


def fresh_test_first(settings: Settings, root: Path) -> int:
    """Return the first test task that the next retraining is to use: today's, or those behind where `gate` says so.

    A registry that does not answer is a UserError.
    """
    rules, first = settings.gate, settings.tasks.test_first
    if not rules.fresh_after_comparisons and not rules.fresh_after_days:
        return first
    registry = Registry(settings.tracking, root)
    with answering(registry, "say how often the test tasks have served"):
        versions = registry.versions()
    rows = [row for version in versions for row in entries(version.tags, "comparison").values()]
    rows = [row for row in rows if row["drawing"] == drawing(settings, root)]
    first = max([first, *(int(row["first"]) for row in rows)])
    times = [timegm(time.strptime(row["time"], "%Y-%m-%dT%H:%M:%SZ")) for row in rows if int(row["first"]) == first]
    worn = 0 < rules.fresh_after_comparisons <= len(times)
    old = bool(rules.fresh_after_days and times) and time.time() - min(times) >= rules.fresh_after_days * DAY
    return first + settings.tasks.test if worn or old else first
