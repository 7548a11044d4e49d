"""One pipeline run: every stage in DVC's order, recorded as one MLflow run, then registration and the gate.

Knows neither Prefect nor how a step is run: `Steps` says that, so that a flow, a test and the quick look "is there
anything to do" share it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweetrl.config.settings import Settings, load_settings
from sweetrl.io import read_json
from sweetrl.paths import EVALUATION, POLICY, REPORT
from sweetrl.stages.registration import known_registration, register_policy
from sweetrl.text import without_login
from sweetrl.tracking.lineage import data_hashes
from sweetrl.tracking.registry import Registration, headline, run_note
from sweetrl.tracking.runs import ERROR_TAG, PARENT_VARIABLE, RETRAINING_TAG, DataInput, RunLog
from sweetrl.tracking.store import NOTE, embedded_database, tracking_enabled, tracking_uri
from tasks.journal import promoting
from tasks.pipeline import Selection, StageResult, changed_stages, execute_stage, left, skipped, stage_order
from tasks.promotion import GateResult, judge, settled, take_over
from tasks.servers import RunServer
from tasks.workspace import push

HOW_MEASURED = ("confidence", "resamples")  # numbers in an evaluation that are settings, not results


@dataclass(frozen=True)
class Steps:
    """How the steps of a pipeline run are carried out; the defaults do it here and now.

    `gate` judges a version, `promote` makes the one that has won the champion. `settled` says of a version that was
    registered before whether the gate has nothing left to do. `opened` gets the id of the MLflow run, `mark`
    is its tag, by which a later attempt finds it. `push` is for retrainings: data first, then the branch.
    """

    run: Callable[[str, Path, dict[str, str]], StageResult] = lambda stage, root, env: execute_stage(root, stage, env)
    register: Callable[[Settings, Path, str | None, Path], Registration] = register_policy
    gate: Callable[[Settings, Path, str], GateResult] = judge
    promote: Callable[[Settings, Path, GateResult], GateResult] = take_over
    settled: Callable[[Registration], bool] = settled
    before_register: Callable[[Path], object] = lambda root: None
    opened: Callable[[str], object] = lambda run: None
    mark: str = ""
    push: Callable[[Path, str | None], list[str]] = push
    say: Callable[[str], None] = print


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
        return all(result.status in ("skipped", "left") for result in self.stages)


def run_pipeline(
    root: Path,
    steps: Steps | None = None,
    home: Path | None = None,
    resume: str | None = None,
    selection: Selection | None = None,
) -> Outcome:
    """Bring every stage up to date, register the policy, let it stand against the champion.

    `home` is the lasting checkout whose embedded store is used (default: `root`; they differ in a worktree). `resume`
    is the MLflow run of an earlier attempt, which then goes on. The first failing stage ends the run with its
    StageFailed, and the MLflow run says so. With a `selection` the other stages are left as they are; if one of them
    has changed, nothing is registered.
    """
    steps, home = steps or Steps(), home or root
    started = time.monotonic()
    settings = load_settings(root / "params.yaml")
    order = stage_order(root)
    parent = PipelineRecord(settings, root, home, steps.opened, resume, steps.mark)
    results: list[StageResult] = []
    changed = changed_stages(root)
    chosen = (selection or Selection()).of(order)
    stale: tuple[str, ...] = ()
    try:
        with RunServer(settings, root) as server:
            for number, stage in enumerate(order, 1):
                if stage not in chosen:
                    results.append(left(root, stage))
                    continue
                # Once a stage has run, those behind it may have changed with it.
                at_rest = all(result.status in ("skipped", "left") for result in results)
                if stage in changed if at_rest else changed_stages(root, [stage]):
                    steps.say(f"stage {number} of {len(order)}: {stage}")
                    result = steps.run(stage, root, parent.environment() | server.environment(stage))
                else:
                    result = skipped(root, stage)
                steps.say(describe(result))
                results.append(result)
        if len(chosen) < len(order):
            found = changed_stages(root)
            stale = tuple(stage for stage in order if stage in found)
        registration: Registration | None = None
        gate: GateResult | None = None
        if not stale:
            steps.before_register(root)
            registration, gate = _register(settings, root, home, steps, parent, results)
    except BaseException as error:
        parent.finish_failed(results, error)
        raise
    parent.finish(results, registration, gate, evaluated=not stale)
    if registration is not None and embedded_database(settings.tracking, root) is not None and home == root:
        known_registration(settings, root)  # noted, so that the next run need not import MLflow to ask
    return Outcome(
        stages=tuple(results),
        registration=registration,
        gate=gate,
        parent_run=parent.run_id,
        tracking=without_login(tracking_uri(settings.tracking, home)),
        seconds=time.monotonic() - started,
        evaluation=read_json(root / EVALUATION) if (root / EVALUATION).exists() and not stale else {},
        stale=stale,
    )


def _register(
    settings: Settings, root: Path, home: Path, steps: Steps, parent: PipelineRecord, results: list[StageResult]
) -> tuple[Registration | None, GateResult | None]:
    if not tracking_enabled() or not (root / POLICY).exists() or not (root / EVALUATION).exists():
        return None, None
    registration = steps.register(settings, root, parent.run_id, home)
    at_rest = not registration.created and all(result.status in ("skipped", "left") for result in results)
    if at_rest and steps.settled(registration):
        return registration, None
    gate = steps.gate(settings, root, registration.version)
    if not gate.won:
        return registration, gate
    with promoting(home, steps.say):  # a retraining or a rollback of this repository may be at it
        return registration, steps.promote(settings, root, gate)


def describe(result: StageResult) -> str:
    """Return one line about what became of a stage."""
    if result.status == "skipped":
        return f"{result.stage}: skipped, nothing has changed"
    if result.status == "left":
        return f"{result.stage}: left as it is"
    if result.status == "restored":
        return f"{result.stage}: restored from the cache in {result.seconds:.0f} s"
    return f"{result.stage}: ran in {result.seconds:.0f} s"


class PipelineRecord:
    """The MLflow run above the stages' runs; opened when the first stage has something to do."""

    def __init__(
        self,
        settings: Settings,
        root: Path,
        home: Path,
        opened: Callable[[str], object] = lambda run: None,
        resume: str | None = None,
        mark: str = "",
    ):
        self.settings, self.root, self.home, self.opened, self.mark = settings, root, home, opened, mark
        self.log: RunLog | None = None
        if resume is not None:
            self._open(resume)

    @property
    def run_id(self) -> str | None:
        """The run's id, if there is one."""
        return self.log.run_id if self.log else None

    def environment(self) -> dict[str, str]:
        """Open the run if need be; return what a stage needs to put its own run below it."""
        if self.log is None:
            self._open()
        uri = tracking_uri(self.settings.tracking, self.home)
        return {"MLFLOW_TRACKING_URI": uri, **({PARENT_VARIABLE: self.run_id} if self.run_id else {})}

    def _open(self, resume: str | None = None) -> None:
        tags = {"sweetrl.kind": "pipeline", **({RETRAINING_TAG: self.mark} if self.mark else {})}
        self.log = RunLog(self.settings.tracking, "train", tags, root=self.home, run_id=resume)
        if self.mark and resume is None:
            self.log.take_over(RETRAINING_TAG)
        run = self.log.open()
        if run is None or run != resume:
            self.log.log_params(self.settings.model_dump(mode="json", by_alias=True))
        if run is not None and run != resume:
            self.opened(run)

    def finish(
        self,
        results: list[StageResult],
        registration: Registration | None,
        gate: GateResult | None,
        evaluated: bool = True,
    ) -> None:
        """Write what the run rests on and led to, and close it; without `evaluated` the numbers here are others'."""
        if self.log is None:
            return
        self._write_stages(results)
        for path, found in data_hashes(self.root).items():
            self.log.add_input(DataInput(path, path, found, "pipeline"))
        for name in ("dvc.lock", "params.yaml", str(REPORT), str(EVALUATION)):
            if (self.root / name).exists():
                self.log.log_artifact(self.root / name)
        numbers = headline(self.root / EVALUATION) if evaluated and (self.root / EVALUATION).exists() else {}
        measured = {key: value for key, value in numbers.items() if isinstance(value, int | float)}
        self.log.log_metrics({key: value for key, value in measured.items() if key not in HOW_MEASURED})
        version, reason = "", ""
        if registration is not None:
            version = f"{registration.model}/{registration.version}"
            self.log.set_tags({"sweetrl.model": version})
        if gate is not None:
            reason = gate.reason
            self.log.set_tags({"sweetrl.gate": reason})
        report = REPORT.name if (self.root / REPORT).exists() else ""
        self.log.set_tags({NOTE: run_note(numbers, reason, version, report)})
        self.log.finish("FINISHED")

    def finish_failed(self, results: list[StageResult], error: BaseException) -> None:
        """Close the run and whatever its stages have left open."""
        if self.log is None:
            return
        self._write_stages(results)
        why = (str(error) or type(error).__name__)[:500]
        self.log.set_tags({ERROR_TAG: why, NOTE: f"**Failed:** {why}"})
        self.log.close_children()
        self.log.finish("FAILED" if isinstance(error, Exception) else "KILLED")

    def _write_stages(self, results: list[StageResult]) -> None:
        assert self.log is not None
        for result in results:
            self.log.set_tags({f"stage.{result.stage}": result.status})
            if result.run_id:  # also of stages that did not run now: the chain stays whole
                self.log.set_tags({f"run.{result.stage}": result.run_id})
