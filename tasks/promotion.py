"""Registration and the promotion gate: a challenger becomes champion only if it wins on the same held-out tasks."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.file_hashes import file_hash
from sweetrl.gate.decision import Decision, as_row, first_decision, pair_versions, render, too_few
from sweetrl.gate.decision import decide as decide_comparison
from sweetrl.io import digest, write_json, write_text
from sweetrl.paths import GATE_REPORT, HASHES, POLICY, RESULTS, TEST_TASKS
from sweetrl.stages.registration import evaluation_key, evaluation_tags
from sweetrl.tracking import comparisons
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
from tasks.fresh import drawing
from tasks.pipeline import StageFailed, failure, policy_of, stage_environment
from tasks.process import TimeLimitExceeded, run_program

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion


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


def decide(settings: Settings, root: Path, version: str, line: Callable[[str], None] = print) -> GateResult:
    """Let `version` (registered, evaluated) stand against the champion, and move the alias if it wins."""
    result = judge(settings, root, version, line)
    return take_over(settings, root, result) if result.won else result


def judge(settings: Settings, root: Path, version: str, line: Callable[[str], None] = print) -> GateResult:
    """Let `version` (registered, evaluated) stand against the champion, and write the verdict to the version.

    A champion that was evaluated on other tasks, or in another way, is evaluated on the current ones first. The
    comparison is counted with the champion's version before its result is known. Nothing is promoted: that is for
    `take_over`.
    """
    registry = Registry(settings.tracking, root)
    challenger = registry.get(version)
    version = str(challenger.version)
    before = registry.aliases().get(CHAMPION)
    if before == version:
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
        _report(registry, settings, root, challenger, result)
    _note(registry, result)
    return result


def _compare(
    registry: Registry, settings: Settings, root: Path, champion: ModelVersion, challenger: ModelVersion, key: str
) -> Decision:
    """Count a comparison and decide it; the same results of the same versions are the same comparison."""
    rules, confidence, name = settings.gate, settings.evaluate.confidence, str(champion.version)
    old, new = (comparisons.measured(registry, one, rules.slices) for one in (champion, challenger))
    paired = pair_versions(old, new, rules)
    tasks = file_hash(root / TEST_TASKS)
    identity = digest(str(challenger.version), key, sorted(old.rewards.items()), sorted(new.rewards.items()))
    known = comparisons.noted(registry, name, "comparison")
    if refused := too_few(paired, rules, confidence, _next_number(known, identity, tasks)):
        return refused
    facts = {"challenger": str(challenger.version), "first": settings.tasks.test_first}
    facts["drawing"] = drawing(settings, root)
    number = comparisons.take_number(registry, name, "comparison", identity, tasks, facts)
    decision = decide_comparison(paired, rules, confidence, settings.evaluate.resamples, settings.seed, number)
    row = comparisons.noted(registry, name, "comparison")[identity] | as_row(decision)
    comparisons.note(registry, name, "comparison", identity, row)
    return decision


def _next_number(known: Mapping[str, Mapping[str, Any]], identity: str, tasks: str) -> int:
    """The number that a comparison has, or would get."""
    mine = known.get(identity, {}).get("number")
    return int(mine) if mine is not None else 1 + sum(one["tasks"] == tasks for one in known.values())


def _report(registry: Registry, settings: Settings, root: Path, challenger: ModelVersion, result: GateResult) -> None:
    """Keep the comparison as a page and as numbers with the version; the page is in reports/, too."""
    decision = result.decision
    assert decision is not None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = render(decision, settings.gate, result.version, result.before or "")
        write_text(folder / GATE_REPORT.name, text)
        write_json(folder / "gate.json", decision.as_dict() | {"champion": result.before})
        write_text(root / GATE_REPORT, text)
        with answering(registry, f"keep the report about version {result.version}"):
            registry.client.log_model_artifacts(model_id(challenger), name, "gate")


def _note(registry: Registry, result: GateResult) -> None:
    """Write the verdict to the version: whether it is to be champion, and whether it has become so."""
    verdict = {"promote": result.won, "promoted": result.promoted, "against": result.before or ""}
    registry.note_gate(result.version, verdict | {"reason": result.reason})


def settled(registration: Registration) -> bool:
    """Whether nothing is left to do for a version: it is champion, it has lost, or it has been champion."""
    if CHAMPION in registration.aliases:
        return True
    verdict = json.loads(registration.tags.get(GATE, "null"))
    return verdict is not None and (not verdict["promote"] or verdict["promoted"])


def take_over(settings: Settings, root: Path, result: GateResult) -> GateResult:
    """Make the version that has won the champion; a UserError where the champion is not the one that it has beaten."""
    registry = Registry(settings.tracking, root)
    champion = registry.aliases().get(CHAMPION)
    if champion not in (result.before, result.version):
        raise UserError(
            f"{registry.name}: version {champion} has become champion while version {result.version} was compared with "
            f"{f'version {result.before}' if result.before else 'none'}; run the gate again: `python -m flows.promote`."
        )
    registry.promote(result.version, result.decision.reason if result.decision else result.reason)
    result = replace(result, promoted=True, champion=result.version)
    _note(registry, result)
    return result


def champion(settings: Settings, root: Path) -> str | None:
    """Return the number of the version that is champion now, None where there is none."""
    return Registry(settings.tracking, root).aliases().get(CHAMPION)


def bring_up_to_date(
    registry: Registry, settings: Settings, root: Path, version: ModelVersion, key: str, line: Callable[[str], None]
) -> None:
    """Evaluate a version as it is done now, unless what is stored with it was measured so (`key`)."""
    if version.tags.get("evaluation_key") != key:
        line(
            f"version {version.version} was evaluated on other tasks or in another way: evaluating it as it is done now"
        )
        evaluate_version(settings, root, registry, version, line)


def evaluate_version(
    settings: Settings, root: Path, registry: Registry, version: ModelVersion, line: Callable[[str], None] = print
) -> dict[str, float]:
    """Evaluate a registered version on the current held-out tasks, store the result with it, return its rewards.

    The evaluate stage runs in a temporary folder in which models/policy is the version's adapter: same code, same
    tasks, same seeds, and nothing of the project's own results is touched.
    """
    for needed in (TEST_TASKS, Path("params.yaml")):
        if not (root / needed).exists():
            raise UserError(f"{root / needed}: there is no such file; run the pipeline first (`sweetrl run`).")
    scratch = root / ".scratch"
    scratch.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch, prefix="evaluate-version-") as name:
        folder = Path(name)
        shutil.copy(root / "params.yaml", folder / "params.yaml")
        (folder / TEST_TASKS).parent.mkdir(parents=True)
        (folder / TEST_TASKS).symlink_to((root / TEST_TASKS).resolve())
        (folder / POLICY).parent.mkdir(parents=True)
        if (root / settings.model.base).is_dir() and not Path(settings.model.base).is_absolute():
            base = folder / settings.model.base
            base.parent.mkdir(parents=True, exist_ok=True)
            base.symlink_to((root / settings.model.base).resolve())
        # A large base that the project knows is not read again.
        (root / HASHES).mkdir(parents=True, exist_ok=True)
        (folder / HASHES).parent.mkdir(parents=True)
        (folder / HASHES).symlink_to((root / HASHES).resolve())
        adapter = registry.download(version, "artifacts/policy", folder / ".download")
        shutil.move(str(adapter), folder / POLICY)
        _run_evaluation(folder, version, line)
        registry.attach_evaluation(str(version.version), folder, evaluation_tags(settings, folder))
        return read_rewards(folder / RESULTS)


def _run_evaluation(folder: Path, version: ModelVersion, line: Callable[[str], None]) -> None:
    lines: list[str] = []

    def take(text: str) -> None:
        lines.append(text)
        line(text)

    stage = f"evaluate (version {version.version})"
    # Not a run of the pipeline: what it measures is stored with the version.
    env = stage_environment({"SWEETRL_TRACKING": "off", "PYTHONPATH": _python_path()})
    command = [sys.executable, "-m", "sweetrl.stages.evaluate"]
    try:
        code = run_program(command, folder, env, policy_of("evaluate").limit, take)
    except TimeLimitExceeded as error:
        raise StageFailed(stage, "it took longer than its limit and was stopped.") from error
    if code:
        raise failure(stage, lines, code)


def _python_path() -> str:
    """The folder that `sweetrl` was imported from, so that the temporary folder runs the same code."""
    import sweetrl

    return str(Path(str(sweetrl.__file__)).resolve().parents[1])
