"""Registration and the promotion gate: a challenger becomes champion only if it wins on the same held-out tasks.

And what follows from the comparisons that the registry keeps: looks at the champion, and fresh test tasks.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.file_hashes import dvc_hash, file_hash
from sweetrl.gate.decision import Decision, as_row, first_decision, pair_versions, render
from sweetrl.gate.decision import decide as decide_comparison
from sweetrl.gate.drift import Look, look
from sweetrl.io import digest, private_folder, write_text
from sweetrl.models.check import is_full
from sweetrl.paths import GATE_REPORT, POLICY, RESULTS, ROOT_VARIABLE, SCRATCH, TEST_TASKS
from sweetrl.stages.launch import link, link_named
from sweetrl.stages.registration import evaluation_key, evaluation_tags
from sweetrl.tracking import comparisons
from sweetrl.tracking.chat_agent import AgentConfig, find_base
from sweetrl.tracking.registry import (
    CHALLENGER,
    CHAMPION,
    GATE,
    Registration,
    Registry,
    answering,
    model_id,
    read_rewards,
)
from tasks.pipeline import run_command, stage_environment
from tasks.workspace import change_parameters

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

DAY = 86_400.0


@dataclass(frozen=True)
class GateResult:
    """What the gate did: `champion` is the version that is champion now, `before` the one that was.

    `decision` is None where there was nothing to decide (the version is the champion already). A version that has won
    (`won`) and is not `promoted` has yet to become champion: `take_over` moves the alias.
    """

    version: str
    promoted: bool
    champion: str
    before: str | None
    reason: str
    decision: Decision | None = None

    @property
    def won(self) -> bool:
        """Whether the version is to be the champion."""
        return self.decision is not None and self.decision.promote


def judge(settings: Settings, root: Path, version: str, line: Callable[[str], None] = print) -> GateResult:
    """Let `version` (registered, evaluated) stand against the champion, and write the verdict to the version.

    A champion that was evaluated on other tasks, or in another way, is evaluated on the current ones first. The
    comparison is counted with the champion's version before its result is known. Nothing is promoted: that is for
    `take_over`. Of the champion, what a death has left behind its alias is done.
    """
    registry = Registry(settings.tracking, root)
    challenger = registry.get(version)
    version = str(challenger.version)
    before = registry.aliases().get(CHAMPION)
    if before == version:
        with answering(registry, f"note that version {version} is the champion"):
            registry.settle(version)
        return GateResult(version, False, version, before, f"version {version} is the champion already.")
    key = evaluation_key(settings, root)
    bring_up_to_date(registry, settings, root, challenger, key, line)
    if before is None:
        decision = first_decision(comparisons.measured(registry, challenger), settings.evaluate.confidence)
    else:
        champion = registry.get(before)
        bring_up_to_date(registry, settings, root, champion, key, line)
        decision = _compare(registry, settings, root, champion, challenger, key)
    if CHALLENGER not in registry.aliases_of(version):
        registry.set_alias(CHALLENGER, version)
    result = GateResult(version, False, before or "", before, decision.verdict, decision)
    if before is not None:
        write_text(root / GATE_REPORT, render(decision, settings.gate, version, before))
        with answering(registry, f"keep the report about version {version}"):
            registry.client.log_model_artifact(model_id(challenger), str(root / GATE_REPORT), "gate")
    verdict = {"promote": result.won, "promoted": False, "against": before or "", "reason": result.reason}
    registry.note_gate(version, verdict)
    return result


def _compare(
    registry: Registry, settings: Settings, root: Path, champion: ModelVersion, challenger: ModelVersion, key: str
) -> Decision:
    """Count a comparison and decide it; the same results of the same versions are the same comparison."""
    rules, confidence, name = settings.gate, settings.evaluate.confidence, str(champion.version)
    old, new = (comparisons.measured(registry, version, rules.slices) for version in (champion, challenger))
    paired = pair_versions(old, new, rules)
    tasks = file_hash(root / TEST_TASKS)
    identity = digest(str(challenger.version), key, sorted(old.rewards.items()), sorted(new.rewards.items()))
    facts = {"challenger": str(challenger.version), "first": settings.tasks.test_first}
    facts["drawing"] = drawing(settings, root)
    row = comparisons.numbered(registry, name, "comparison", identity, tasks, facts)
    decision = decide_comparison(paired, rules, confidence, settings.evaluate.resamples, settings.seed, row["number"])
    comparisons.note(registry, name, "comparison", identity, row | as_row(decision))
    return decision


def settled(registration: Registration) -> bool:
    """Whether nothing is left to do for a version: it is champion, it has lost, or it has been champion."""
    if CHAMPION in registration.aliases:
        return CHALLENGER not in registration.aliases  # else a death behind the alias has left something to do
    verdict = json.loads(registration.tags.get(GATE, "null"))
    return verdict is not None and (not verdict["promote"] or verdict["promoted"])


def take_over(settings: Settings, root: Path, result: GateResult) -> GateResult:
    """Make the version that has won the champion; a UserError where the champion is not the one that it has beaten."""
    registry = Registry(settings.tracking, root)
    champion = registry.aliases().get(CHAMPION)
    if champion not in (result.before, result.version):
        raise UserError(f"{registry.name}: version {champion} became champion meanwhile; `python -m flows.promote`.")
    with answering(registry, f"make version {result.version} the champion"):
        registry.promote(result.version, result.decision.reason if result.decision else result.reason)
    return replace(result, promoted=True, champion=result.version)


def champion(settings: Settings, root: Path) -> str | None:
    """Return the number of the version that is champion now, None where there is none."""
    return Registry(settings.tracking, root).aliases().get(CHAMPION)


def bring_up_to_date(
    registry: Registry, settings: Settings, root: Path, version: ModelVersion, key: str, line: Callable[[str], None]
) -> None:
    """Evaluate a version as it is done now, unless what is stored with it was measured so (`key`)."""
    if version.tags.get("evaluation_key") != key:
        line(f"version {version.version} was evaluated on other tasks or in another way: evaluating it again")
        evaluate_version(settings, root, registry, version, line)


def evaluate_version(
    settings: Settings, root: Path, registry: Registry, version: ModelVersion, line: Callable[[str], None] = print
) -> dict[str, float]:
    """Evaluate a registered version on the current held-out tasks, store the result with it, return its rewards.

    The evaluate stage runs in a temporary folder in which models/policy is the version's adapter, on the base that it
    was trained on: today's tasks, seeds and code (your own too: of a version only the weights count), and none of the
    project's results is touched. A base that cannot be had is a UserError.
    """
    for needed in (TEST_TASKS, Path("params.yaml")):
        if not (root / needed).exists():
            raise UserError(f"{root / needed}: there is no such file; run the pipeline first (`sweetrl run`).")
    with tempfile.TemporaryDirectory(dir=private_folder(root / SCRATCH), prefix="evaluate-version-") as name:
        folder = Path(name)
        shutil.copy(root / "params.yaml", folder / "params.yaml")
        for path in (TEST_TASKS, Path(settings.model.base)):
            if (root / path).exists() and not path.is_absolute():
                link(root / path, folder / path)
        link_named(settings, folder, root)
        link(registry.download(version, "artifacts/policy", folder / ".download"), folder / POLICY)
        if base := _own_base(registry, version, settings, root, folder):
            change_parameters(folder, {"model.base": base})
        # No run of the pipeline: what it measures is stored with the version.
        env = stage_environment(root, {"SWEETRL_TRACKING": "off", ROOT_VARIABLE: str(root)})
        run_command("evaluate", [sys.executable, "-m", "sweetrl.stages.evaluate"], folder, env, line)
        registry.attach_evaluation(str(version.version), folder, evaluation_tags(settings, root, folder))
        return read_rewards(folder / RESULTS)


def _own_base(registry: Registry, version: ModelVersion, settings: Settings, root: Path, folder: Path) -> str:
    """Return where the base is that the adapter in `folder` was trained on; "" where today's will do."""
    base, content = (version.tags.get(tag, "") for tag in ("base", "base_hash"))
    here = root / settings.model.base
    now = dvc_hash(here) if here.is_dir() else ""
    if not base or is_full(folder / POLICY) or (content == now and (now or base == settings.model.base)):
        return ""
    bundled = None
    with suppress(UserError):  # a large one is not stored with it
        bundled = registry.download(version, "artifacts/base", folder / ".download")
    place = find_base(AgentConfig(base, content, version.tags.get("base_revision", "")), bundled)
    return str(Path(place).resolve()) if Path(place).is_dir() else place


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
        measured_before = version.tags.get("evaluation_key") == key
        bring_up_to_date(registry, settings, root, version, key, line)
        comparisons.keep_baseline(registry, version, key)
        version = registry.get(number)
        if not measured_before:
            what = f"version {number} was measured on these tasks, in this way, for the first time"
            return Look(False, f"{what}: later looks are compared with that.", 0)
    first = comparisons.baseline(registry, version, key)
    assert first is not None
    now = evaluate_version(settings, root, registry, version, line)
    name, tasks = uuid.uuid4().hex[:16], f"{file_hash(root / TEST_TASKS)} {key}"
    row, ruler = comparisons.numbered(registry, number, "look", name, tasks, {"key": key}), settings.evaluate
    seen = look(first, now, settings.gate, ruler.confidence, ruler.resamples, settings.seed, row["number"])
    comparisons.note(registry, number, "look", name, row | asdict(seen))
    return seen


def drawing(settings: Settings, root: Path) -> str:
    """Return what identifies the sequence of all test tasks, from which `tasks.test_first` cuts its part.

    A file of test tasks is identified by its content: a batch may hold a copy of the one before under another name.
    """
    tasks = settings.tasks
    path = root / tasks.test_file
    content = file_hash(path) if tasks.test_file and path.is_file() else tasks.test_file
    return digest(settings.suite, settings.suite_options, settings.seed, tasks.source, content, tasks.difficulty)


def fresh_test_first(settings: Settings, root: Path) -> int:
    """Return the first test task that the next retraining is to use: today's, or those behind where `gate` says so.

    What they have served for is in the registry, so that all machines agree, also where the retraining that
    took fresh ones has lost and its params.yaml was never merged. A registry that does not answer is a UserError.
    """
    rules, first = settings.gate, settings.tasks.test_first
    if not rules.fresh_after_comparisons and not rules.fresh_after_days:
        return first
    registry = Registry(settings.tracking, root)
    with answering(registry, "say how often the test tasks have served"):
        versions = registry.versions()
    rows = [row for version in versions for row in comparisons.entries(version.tags, "comparison").values()]
    rows = [row for row in rows if row["drawing"] == drawing(settings, root)]
    first = max([first, *(int(row["first"]) for row in rows)])
    times = [datetime.fromisoformat(row["time"]).timestamp() for row in rows if int(row["first"]) == first]
    worn = 0 < rules.fresh_after_comparisons <= len(times)
    old = bool(rules.fresh_after_days and times) and time.time() - min(times) >= rules.fresh_after_days * DAY
    return first + settings.tasks.test if worn or old else first
