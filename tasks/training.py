"""One pipeline run: what it would do, and every stage in DVC's order, one MLflow run, registration and the gate.

Knows neither Prefect nor how a step is run: `Steps` says that, so that a flow, a test and the quick look "is there
anything to do" share it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from sweetrl.config.overrides import differences, value_of
from sweetrl.config.settings import Settings, load_settings
from sweetrl.config.yaml_files import read_yaml
from sweetrl.errors import UserError, did_you_mean
from sweetrl.evaluation.report import harm
from sweetrl.io import read_json
from sweetrl.paths import EVALUATION, POLICY, REPORT
from sweetrl.stages.registration import current_registration, register_policy
from sweetrl.stages.scratch import remove_recorded
from sweetrl.text import without_login
from sweetrl.tracking.lineage import data_hashes
from sweetrl.tracking.registry import CHAMPION, YET, Registration, headline, run_note
from sweetrl.tracking.runs import ERROR_TAG, HARM_TAG, PARENT_VARIABLE, RETRAINING_TAG, DataInput, RunLog
from sweetrl.tracking.store import NOTE, embedded_database, tracking_enabled, tracking_uri
from tasks.journal import promoting
from tasks.outages import raise_outage
from tasks.pipeline import (
    ALL,
    PIPELINE,
    Selection,
    StageResult,
    changed_stages,
    execute_stage,
    open_stages,
    result_of,
    stage_states,
)
from tasks.promotion import GateResult, judge, settled, take_over
from tasks.workspace import push

if TYPE_CHECKING:
    from dvc.stage import Stage

Result = TypeVar("Result")
Would = Literal["run", "perhaps", "skip", "left"]
SHOWN = 3  # reasons of one stage that are told one by one
HOW_MEASURED = ("confidence", "resamples")  # numbers in an evaluation that are settings, not results


@dataclass(frozen=True)
class Steps:
    """How the steps of a pipeline run are carried out; the defaults do it here and now.

    `gate` judges a version, `promote` makes the one that has won the champion. The rest is for retrainings: `note` gets
    what must be known to go on after a death, `mark` is a tag of the MLflow run, by which a later attempt finds it,
    `push` takes data first, then the branch, and `announce` gets what each has come to, before the next one begins.
    """

    run: Callable[[str, Path, dict[str, str]], StageResult] = lambda stage, root, env: execute_stage(root, stage, env)
    register: Callable[[Settings, Path, str | None, Path], Registration] = register_policy
    gate: Callable[[Settings, Path, str], GateResult] = judge
    promote: Callable[[Settings, Path, GateResult], GateResult] = take_over
    note: Callable[..., object] = lambda step, **facts: None
    mark: str = ""
    push: Callable[[Path, str | None], list[str]] = push
    announce: Callable[[Outcome], object] = lambda outcome: None
    say: Callable[[str], None] = print

    def judge(self, settings: Settings, root: Path, version: str) -> GateResult:
        """Let a version stand before the gate, and note the verdict; that it is the champion already is none."""
        result = self.gate(settings, root, version)
        if result.decision is not None:
            verdict = {"promote": result.won, "before": result.before, "reason": result.reason}
            self.note("decided", version=version, **verdict)
        return result


@dataclass(frozen=True)
class Outcome:
    """What a pipeline run did.

    `registration` is None where tracking is off, and where `stale` stages are left: what they made does not belong to
    the parameters, inputs and code that lie here.
    """

    stages: tuple[StageResult, ...]
    registration: Registration | None = None
    gate: GateResult | None = None
    parent_run: str | None = None
    tracking: str = ""
    seconds: float = 0.0
    evaluation: dict[str, Any] = field(default_factory=dict)
    stale: tuple[str, ...] = ()

    @property
    def unchanged(self) -> bool:
        """Whether there was nothing to do."""
        return _unchanged(self.stages)

    @property
    def harm(self) -> str:
        """In which measures the policy is worse than its base; "" where in none, or where it is the champion."""
        version, gate = self.registration, self.gate
        champion = version and (gate.champion == version.version if gate else CHAMPION in version.aliases)
        return "" if champion else harm(self.evaluation)


class Unsettled(UserError):
    """All was carried out and recorded (`result`), and a person must act: the process ends with `status`."""

    status = 1

    def __init__(self, sentence: str, result: Any = None):
        self.result = result
        super().__init__(sentence)


class Harm(Unsettled):
    """Training has done harm: the new version is worse than its base."""

    status = 3


class Waiting(Unsettled):
    """A person must do what the sentence says before a version is the champion, or before others have its main."""

    status = 4


def unless_harmful(result: Result, changes: str) -> Result:
    """Return `result`; with `changes` (of measures in which a version is worse than its base) raise Harm with it."""
    if changes:
        accept = "`python -m flows.promote --accept REASON` makes it champion all the same"
        raise Harm(f"the new version is worse than its base: {changes}; {accept}.", result)
    return result


@dataclass(frozen=True)
class PlannedStage:
    """What would become of a stage: `run`; `perhaps` (if those before it make something else); `skip`; `left` out."""

    stage: str
    would: Would
    why: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why, in one line."""
        more = f" and {len(self.why) - SHOWN} more" if len(self.why) > SHOWN else ""
        return "; ".join(self.why[:SHOWN]) + more


def plan(root: Path, selection: Selection = ALL, tree: Mapping[str, Any] | None = None) -> list[PlannedStage]:
    """Return what a run of the stages in `selection` would do with the parameters `tree` (default: params.yaml's)."""
    written = read_yaml(root / "params.yaml") or {}
    tree = written if tree is None else tree
    edited = [key for key, _, _ in differences(written, tree)]
    definitions = (read_yaml(root / PIPELINE) or {}).get("stages", {})
    planned: list[PlannedStage] = []
    makers: dict[str, str] = {}  # output -> the stage that would make it again
    with open_stages(root) as stages:
        chosen = selection.of(list(stages))
        for name, stage in stages.items():
            elsewhere = any(f"${{{key}}}" in str(definitions.get(name, "")) for key in edited)
            why = tuple(_reasons(stage, tree, elsewhere))
            behind = [] if stage.frozen else sorted({makers[str(dep)] for dep in stage.deps if str(dep) in makers})
            would: Would = "left" if name not in chosen else "run" if why else "perhaps" if behind else "skip"
            if would == "perhaps":
                why = (f"if {' or '.join(behind)} makes something else",)
            planned.append(PlannedStage(name, would, why))
            if would in ("run", "perhaps"):
                makers |= {str(out): name for out in stage.outs}
    return planned


def _reasons(stage: Stage, tree: Mapping[str, Any], elsewhere: bool) -> Iterator[str]:
    """Why `stage` has changed since dvc.lock was written; `elsewhere`: its paths would be other ones."""
    from dvc.dependency.param import ParamsDependency

    if elsewhere or stage.changed_stage():
        yield "its command, inputs or outputs are described otherwise in dvc.yaml"
    for dep in [] if stage.frozen else stage.deps:
        if not isinstance(dep, ParamsDependency):
            yield from (f"input {path}: {how}" for path, how in dep.status().items())
            continue
        recorded = dep.hash_info.value if dep.hash_info else None
        if recorded is None:
            yield "it has never run here"
            continue
        values = tree if str(dep) == "params.yaml" else read_yaml(Path(dep.fs_path)) or {}
        now = {key: value_of(values, key) for key in dep.params}
        for name, before, after in differences({key: recorded.get(key) for key in now}, now):
            yield f"{name}: {_shown(before)} -> {_shown(after)}"
    for out in stage.outs:
        yield from (f"output {path}: {how}" for path, how in out.status().items())


def _shown(value: Any) -> str:
    return "nothing" if value in (None, "") else str(value)


def check_stage(root: Path, option: str, name: str) -> None:
    """Raise a UserError where `name`, given for `option`, is no stage; "" is none that is given."""
    names = [str(stage) for stage in (read_yaml(root / PIPELINE) or {}).get("stages", {})]
    if name and name not in names:
        raise UserError(f"{option} {name}: no such stage{did_you_mean(name, names)}; known are {', '.join(names)}.")


def at_rest(root: Path, selection: Selection = ALL) -> Outcome | None:
    """Return the outcome of a run that would change nothing, by DVC, the registry and the gate; None where it would."""
    started = time.monotonic()
    settings, states = load_settings(root / "params.yaml"), stage_states(root)
    chosen = selection.of(list(states))
    if any(states[stage] for stage in chosen):
        return None
    remove_recorded(root)
    stale = tuple(stage for stage, changed in states.items() if changed)
    registration = None
    if not stale and tracking_enabled() and _has_policy(root):
        registration = current_registration(settings, root)
        if registration is None or not settled(registration):
            return None
    stages = tuple(result_of(root, stage, "skipped" if stage in chosen else "left") for stage in states)
    return _ended(Outcome(stages, registration, stale=stale), settings, root, root, started)


def run_pipeline(
    root: Path,
    steps: Steps | None = None,
    home: Path | None = None,
    selection: Selection = ALL,
    hand_over: Callable[[Path], object] | None = None,
    crown: Callable[[GateResult], GateResult] | None = None,
) -> Outcome:
    """Bring every stage up to date, register the policy, let it stand against the champion.

    `home` is the lasting checkout whose embedded store is used (default: `root`; they differ in a worktree). The first
    failing stage ends the run with its StageFailed, and the MLflow run says so. With a `selection` the other stages are
    left as they are; if one of them has changed, nothing is registered. A retraining has a step `hand_over` before
    anything is registered; the version is always judged then, and `crown` does what follows from the verdict, before
    the MLflow run is closed.
    """
    steps, home = steps or Steps(), home or root
    started = time.monotonic()
    settings, states = load_settings(root / "params.yaml"), stage_states(root)
    parent = PipelineRecord(settings, root, home, steps)
    if steps.mark:  # there may be nothing left to do for a stage
        parent.open()
    results: list[StageResult] = []
    chosen = selection.of(list(states))
    registration: Registration | None = None
    gate: GateResult | None = None
    try:
        for number, (stage, changed) in enumerate(states.items(), 1):
            if stage not in chosen:
                results.append(result_of(root, stage, "left"))
                continue
            # Once a stage has run, those behind it may have changed with it.
            if changed if _unchanged(results) else changed_stages(root, [stage]):
                steps.say(f"stage {number} of {len(states)}: {stage}")
                result = steps.run(stage, root, parent.environment())
            else:
                result = result_of(root, stage, "skipped")
            steps.say(describe(result))
            results.append(result)
        now = changed_stages(root) if len(chosen) < len(states) else set()
        stale = tuple(stage for stage in states if stage in now)
        if not stale:
            if hand_over is not None:
                hand_over(root)
            unchanged = _unchanged(results) and hand_over is None
            registration, gate = _register(settings, root, home, steps, parent.run_id, unchanged)
            if gate is not None and crown is not None:
                gate = crown(gate)
            elif gate is not None and gate.won:
                with promoting(home, steps.say):  # a retraining of this repository may be at it
                    gate = steps.promote(settings, root, gate)
    except BaseException as error:
        parent.finish_failed(results, error)
        raise
    parent.finish(results, registration, gate, evaluated=not stale)
    if registration is not None and embedded_database(settings.tracking, root) is not None and home == root:
        current_registration(settings, root)  # noted, so that the next run need not import MLflow to ask
    outcome = Outcome(tuple(results), registration, gate, parent.run_id, stale=stale)
    return _ended(outcome, settings, root, home, started)


def _ended(outcome: Outcome, settings: Settings, root: Path, home: Path, started: float) -> Outcome:
    """Add to an outcome how long it took, where it is recorded, and the evaluation, if it is this run's."""
    evaluation = read_json(root / EVALUATION) if (root / EVALUATION).exists() and not outcome.stale else {}
    tracking, seconds = without_login(tracking_uri(settings.tracking, home)), time.monotonic() - started
    return replace(outcome, tracking=tracking, seconds=seconds, evaluation=evaluation)


def _unchanged(results: Iterable[StageResult]) -> bool:
    return all(result.status in ("skipped", "left") for result in results)


def _has_policy(root: Path) -> bool:
    return (root / POLICY).exists() and (root / EVALUATION).exists()


def _register(
    settings: Settings, root: Path, home: Path, steps: Steps, run: str | None, unchanged: bool
) -> tuple[Registration | None, GateResult | None]:
    """Register the policy, and judge it, unless nothing has run and nothing is left to judge."""
    if not tracking_enabled() or not _has_policy(root):
        return None, None
    registration = steps.register(settings, root, run, home)
    steps.note("registered", version=registration.version)
    if unchanged and not registration.created and settled(registration):
        return registration, None
    return registration, steps.judge(settings, root, registration.version)


def describe(result: StageResult) -> str:
    """Return one line about what became of a stage."""
    words = {
        "skipped": "skipped, nothing has changed",
        "left": "left as it is",
        "restored": f"restored from the cache in {result.seconds:.0f} s",
        "ran": f"ran in {result.seconds:.0f} s",
    }
    return f"{result.stage}: {words[result.status]}"


def _statuses(results: Iterable[StageResult]) -> dict[str, str]:
    """The tags of a pipeline run that say what became of its stages."""
    return {f"stage.{result.stage}": result.status for result in results}


@dataclass
class PipelineRecord:
    """The MLflow run above the stages' runs; opened when the first stage has something to do."""

    settings: Settings
    root: Path
    home: Path
    steps: Steps = field(default_factory=Steps)
    log: RunLog | None = None

    @property
    def run_id(self) -> str | None:
        """The run's id, if there is one."""
        return self.log.run_id if self.log else None

    def environment(self) -> dict[str, str]:
        """Open the run if need be; return what a stage needs to put its own run below it."""
        if self.log is None:
            self.open()
        uri = tracking_uri(self.settings.tracking, self.home)
        return {"MLFLOW_TRACKING_URI": uri, **({PARENT_VARIABLE: self.run_id} if self.run_id else {})}

    def open(self) -> None:
        """Open the run, or go on with the one that an earlier attempt has left, which has this one's mark."""
        mark = self.steps.mark
        tags = {"sweetrl.kind": "pipeline", **({RETRAINING_TAG: mark} if mark else {})}
        self.log = RunLog(self.settings.tracking, "train", tags, root=self.home)
        if not (mark and self.log.take_over()):
            self.log.log_params(self.settings.model_dump(mode="json", by_alias=True))
            self.log.flush()  # whoever goes on with it after a death has them

    def finish(
        self, results: list[StageResult], registration: Registration | None, gate: GateResult | None, evaluated: bool
    ) -> None:
        """Write what the run rests on and led to, and close it; without `evaluated` the numbers here are others'.

        Where a server is gone, the run of a retraining stays open: UserError, and whoever goes on with it closes it.
        """
        if self.log is None:
            return
        for path, content in data_hashes(self.root).items():
            self.log.add_input(DataInput(path, path, content, "pipeline"))
        for name in ("dvc.lock", "params.yaml", str(REPORT), str(EVALUATION)):
            if (self.root / name).exists():
                self.log.log_artifact(self.root / name)
        comparison = self.root / EVALUATION
        numbers = headline(comparison) if evaluated and comparison.exists() else {}
        measured = {key: value for key, value in numbers.items() if isinstance(value, int | float)}
        self.log.log_metrics({key: value for key, value in measured.items() if key not in HOW_MEASURED})
        version = f"{registration.model}/{registration.version}" if registration is not None else ""
        reason = gate.reason if gate is not None else ""
        reason += YET if gate is not None and gate.won and not gate.promoted else ""
        report = REPORT.name if (self.root / REPORT).exists() else ""
        tags = {"sweetrl.model": version, "sweetrl.gate": reason, NOTE: run_note(numbers, reason, version, report)}
        tags |= {HARM_TAG: harm(read_json(comparison)) if numbers else "", **_statuses(results)}
        self.log.set_tags({key: value for key, value in tags.items() if value or key == NOTE})
        self.log.close_children()
        self.log.finish("FINISHED")
        if self.steps.mark:
            raise_outage(self.log.failure)

    def finish_failed(self, results: list[StageResult], error: BaseException) -> None:
        """Close the run and whatever its stages have left open."""
        if self.log is None:
            return
        why = (str(error) or type(error).__name__)[:500]
        self.log.set_tags({ERROR_TAG: why, NOTE: f"**Failed:** {why}", **_statuses(results)})
        self.log.close_children()
        self.log.finish("FAILED" if isinstance(error, Exception) else "KILLED")
