"""Look at the champion: attempt the test tasks again, and compare with its first measurement on them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.file_hashes import file_hash
from sweetrl.gate.drift import Look, look
from sweetrl.paths import TEST_TASKS
from sweetrl.stages.registration import evaluation_key
from sweetrl.tracking import comparisons
from sweetrl.tracking.registry import CHAMPION, Registry
from tasks.promotion import bring_up_to_date, evaluate_version


def watch(settings: Settings, root: Path, line: Callable[[str], None] = print) -> Look:
    """Measure the champion again and say whether it has got worse since it was measured first, and what to do.

    "First" is for these tasks and settings: where either has changed, a new series of looks begins. What is measured
    now is stored with the version, so that the next challenger is compared with the champion of today. Where nobody is
    champion yet: UserError.
    """
    registry = Registry(settings.tracking, root)
    number = registry.aliases().get(CHAMPION)
    if number is None:
        raise UserError(f"{registry.name}: there is no champion to look at yet; `sweetrl run` trains one.")
    version, key = registry.get(number), evaluation_key(settings, root)
    if comparisons.baseline(registry, version, key) is None:
        known = version.tags.get("evaluation_key") == key
        bring_up_to_date(registry, settings, root, version, key, line)
        comparisons.keep_baseline(registry, version, key)
        version = registry.get(number)
        if not known:
            what = f"version {number} was measured on these tasks, in this way, for the first time"
            return Look(False, f"{what}: later looks are compared with that.", 0)
    first = comparisons.baseline(registry, version, key)
    assert first is not None
    now = evaluate_version(settings, root, registry, version, line)
    name, tasks = uuid.uuid4().hex[:16], digest_of(root, key)
    count = comparisons.take_number(registry, number, "look", name, tasks, {"key": key})
    confidence, resamples = settings.evaluate.confidence, settings.evaluate.resamples
    found = look(first, now, settings.gate, confidence, resamples, settings.seed, count)
    row = comparisons.noted(registry, number, "look")[name] | asdict(found)
    comparisons.note(registry, number, "look", name, row)
    return found


def digest_of(root: Path, key: str) -> str:
    """What a series of looks is known by: the tasks and how they are attempted."""
    return f"{file_hash(root / TEST_TASKS)} {key}"
