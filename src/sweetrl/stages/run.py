"""What every stage (`python -m sweetrl.stages.<module>`) shares: seeds, an MLflow run under the pipeline's parent,
scratch folders, reports/runs/, errors of one line; sweetrl.stages.rank is a short one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sweetrl.api.calls import named_files
from sweetrl.api.rollouts import Running
from sweetrl.config.settings import Settings, load_settings
from sweetrl.console.logs import any_letters, show_progress
from sweetrl.console.progress import first_process
from sweetrl.errors import sentence_of
from sweetrl.file_hashes import dvc_hash, file_hash
from sweetrl.io import atomic_path, digest, private_folder, publish, write_json
from sweetrl.paths import RUNS, SCRATCH, SKIPPED
from sweetrl.rollout.ledger import COST, Ledger, cost_metrics, cost_totals
from sweetrl.stages.launch import LAUNCHED, STARTER, end_with_starter, launch, make_shares, wants_processes
from sweetrl.stages.parameters import check_declared, own_sources, stage_parameters
from sweetrl.stages.scratch import current_share, keep_finished, remove_recorded
from sweetrl.tracking.runs import PARENT_VARIABLE, RunLog
from sweetrl.tracking.store import RECORD_TAG

ERROR_DELAY = 5.0  # seconds that other processes wait before they print an error that the first has likely printed
# Of a training's curves, those that the run file keeps for `dvc plots`; all of them are in MLflow.
CURVES = ("loss", "accuracy", "reward/margin", "reference_kl", "grad_norm", "learning_rate")


class StageRun:
    """One run of one stage: what it read, measured and made. Logging calls only fill buffers."""

    def __init__(self, stage: str, settings: Settings):
        self.stage = stage
        self.settings = settings
        self.share = current_share()
        """The parts that this process makes; with less than all of them the stage returns before it publishes."""
        self.mine = None if self.share.is_all else self.share
        """Which parts this process makes; None for all."""
        self.parameters = stage_parameters(stage, settings)
        self.summary = "done"
        self.last_metrics: dict[str, float] = {}
        self.folders: list[Path] = []
        """What `scratch` has returned."""
        self._steps: dict[int, dict[str, float]] = {}
        self.read: dict[str, str] = {}
        """Of each input the name of its file or folder and the hash."""
        check_declared(settings)
        self.log = RunLog(
            settings.tracking,
            stage,
            tags={"sweetrl.kind": "stage", "sweetrl.stage": stage},
            parent=os.environ.get(PARENT_VARIABLE) or None,
        )
        self.log.log_params(self.parameters)
        for key, path in own_sources(settings).items():
            self.log_input(f"source-{key}", path, "code")

    def log_metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Log one value for each metric, with growing `step` for curves. The run file has the last ones, no costs."""
        self.last_metrics.update({name: float(value) for name, value in values.items() if not COST.match(name)})
        if step and (kept := {name: float(values[name]) for name in CURVES if name in values}):
            self._steps.setdefault(step, {}).update(kept)
        self.log.log_metrics(values, step)

    def curves(self) -> list[dict[str, float]]:
        """Return a row for each training step, oldest first: `step` and those of CURVES that every step has."""
        shared = [name for name in CURVES if all(name in row for row in self._steps.values())]
        return [{"step": step} | {name: row[name] for name in shared} for step, row in sorted(self._steps.items())]

    def log_input(self, name: str, path: Path | str, context: str = "input") -> None:
        """Log that the stage reads the file or folder `path`, by its DVC hash; a hub name becomes a parameter."""
        self.read[name] = Path(path).name  # tasks from files are named by it
        if Path(path).exists():
            self.read[name] += f" {self.log.log_input(name, path, context).hash}"
        else:
            self.log.log_params({f"input.{name}": str(path)})

    def scratch(self, *others: Path) -> Path:
        """Return this stage's folder for unfinished work, named by a digest of its parameters and all that it reads.

        That is what was logged as input so far, `others`, and the prompts and recordings that the parameters name.
        A killed run finds its checkpoints there; other parameters or data get another folder, so nothing stale is ever
        resumed. It is removed when DVC has recorded what the stage made (outside of a DVC project: when the stage ends
        well).
        """
        folder = private_folder(SCRATCH / f"{self.stage}-{self.key(*others)}")
        self.folders.append(folder)
        return folder

    def key(self, *others: Path) -> str:
        """Return a digest of the parameters and of all that was read (see `scratch`)."""
        files = (*others, *named_files(self.settings))
        hashes = [dvc_hash(path) if path.exists() else str(path) for path in files]
        return digest(self.parameters, self.read, hashes)

    def spread(self) -> None:
        """Make all parts in `model.processes` processes, if several can sample; this one puts the parts together.

        A server has processes of its own, and a person can talk to one process only.
        """
        samples = self.settings.engine.kind == "transformers" and self.settings.simulator.kind != "human"
        if samples and self.share.is_all and wants_processes(self.settings.model):
            make_shares(self.stage, self.settings.model)

    def running(self, scratch: Path, policy: str = "") -> Running:
        """Return where dialogues with unfinished work in `scratch` keep their logs and costs, apart for each `policy`.

        What they cost is logged; the policy's part of it under its name.
        """

        def spent(values: Mapping[str, float]) -> None:
            own = {name for name in values if policy and not name.startswith("simulator/")}
            self.log_metrics({f"{name}/{policy}" if name in own else name: values[name] for name in values})

        ledger = f"costs-{policy}" if policy else "costs"
        return Running(
            log=scratch / f"server{self.share.suffix}.log",
            ledger=Ledger(scratch / f"{ledger}{self.share.suffix}.jsonl"),
            mine=self.mine,
            spent=spent,
        )

    def log_costs(self, scratch: Path, policy: str = "") -> None:
        """Log what dialogues have cost (see `running`): sums, means and percentiles, and their ledgers as artifacts.

        The sums take the place of what this process alone has spent: others may have made shares, or been killed.
        """
        paths = sorted(scratch.glob(f"costs-{policy}*.jsonl" if policy else "costs*.jsonl"))
        costs = [cost for path in paths for cost in Ledger(path).read()]
        metrics = cost_totals(costs) | cost_metrics(costs)
        self.log_metrics({f"{name}/{policy}" if policy else name: value for name, value in metrics.items()})
        for path in paths:
            self.log.log_artifact(path, "costs")

    def skip(self, out: Path, why: str) -> None:
        """Write, in the place of the stage's result, that the method does without it."""
        folder = self.scratch() / "skipped"
        write_json(folder / SKIPPED, {"method": self.settings.method, "stage": self.stage, "why": why})
        publish(folder, out)
        self.log.set_tags({"sweetrl.skipped": why})
        self.summary = f"skipped: {why}"


@contextlib.contextmanager
def stage_run(stage: str, settings: Settings, *, torch: bool = True) -> Iterator[StageRun]:
    """Run the body of a stage: seeds everything, records it, writes reports/runs/<stage>.json, prints one summary line.

    That run file follows from the inputs, as all results do; MLflow's run, which has its hash as a tag, says the rest.
    `torch=False` for stages that never need torch saves its import. When the body fails, the run is closed as FAILED
    and no run file is written. A process that makes a share of the stage's parts leaves them in the scratch folder and
    writes no run file either; nor do a launcher's processes but the first.
    """
    started = time.monotonic()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # else a missing folder is looked for on the hub, again and again
    seed_everything(settings.seed, settings.model.threads, torch=torch)
    run = StageRun(stage, settings)
    try:
        yield run
    except BaseException as error:
        killed = isinstance(error, (KeyboardInterrupt, SystemExit))
        run.log.set_tags({"sweetrl.error": (str(error) or type(error).__name__)[:500]})
        run.log.finish("KILLED" if killed else "FAILED")
        raise
    seconds = time.monotonic() - started
    if not first_process():
        return
    if not run.share.is_all:
        run.log.set_tags({"sweetrl.share": str(run.share)})
        run.log.finish("FINISHED")
        print(f"{stage}: share {run.share} is made ({seconds:.1f} s)", flush=True)
        return
    facts = {
        "stage": stage,
        "key": run.key(),
        "summary": run.summary,
        "metrics": run.last_metrics,
        **({"curves": curves} if (curves := run.curves()) else {}),
        "inputs": run.read,
    }
    with atomic_path(RUNS / f"{stage}.json") as fresh:
        write_json(fresh, facts)
        run.log.set_tags({RECORD_TAG: file_hash(fresh)})
        run.log.log_metrics({"seconds": seconds})
        run.log.finish("FINISHED")
    keep_finished(stage, run.folders)
    recorded = f", run {run.log.run_id[:8]}" if run.log.run_id else ""
    print(f"{stage}: {run.summary} ({seconds:.1f} s{recorded})", flush=True)


def seed_everything(seed: int, threads: int, *, torch: bool = True) -> None:
    """Seed Python, NumPy and torch, and make torch repeatable: fixed threads, deterministic algorithms."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with this
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    random.seed(seed)
    import numpy

    numpy.random.seed(seed % 2**32)
    if torch:
        import torch as library

        library.manual_seed(seed)
        library.set_num_threads(threads)
        library.use_deterministic_algorithms(True, warn_only=True)


def stage_main(function: Callable[[Settings], object], spreads: Callable[[Settings], bool] | None = None) -> None:
    """Run a stage as a program, with the parameters in params.yaml.

    A UserError is one sentence on stderr and status 1. A stage that `spreads` starts `model.processes` of its kind.
    """
    if LAUNCHED not in os.environ:
        sys.exit(_status(function, spreads))
    # A process group has threads of its own; where one is still at work when the interpreter ends, the process is
    # aborted (status 134) instead of ending with the stage's status. So it ends at once.
    ending: object = 1
    try:
        ending = _status(function, spreads)
    except SystemExit as error:
        ending = error.code
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ending if isinstance(ending, int) else 1)


def _status(function: Callable[[Settings], object], spreads: Callable[[Settings], bool] | None) -> int:
    """Run a stage, and return the status that its program ends with."""
    any_letters()
    show_progress()
    warnings.filterwarnings("ignore", category=FutureWarning)  # libraries talking to libraries
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if not first_process():
        os.environ["SWEETRL_TRACKING"] = "off"
    if STARTER in os.environ:
        end_with_starter()
    try:
        settings = load_settings()
        if LAUNCHED not in os.environ and current_share().is_all:  # nobody else is at work here
            remove_recorded(Path.cwd())
        if spreads is not None and wants_processes(settings.model) and spreads(settings):
            return launch(settings.model)
        function(settings)
    except KeyboardInterrupt:
        print("interrupted; finished work is kept: run the same command again to go on.", file=sys.stderr)
        return 130
    except Exception as error:
        if (sentence := sentence_of(error)) is None:
            raise
        if not first_process():  # all fail alike, and the launcher ends this one when the first has printed its error
            time.sleep(ERROR_DELAY)
        print(f"error: {sentence}", file=sys.stderr, flush=True)
        return 1
    return 0
