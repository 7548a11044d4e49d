"""Where things lie in a project's folder: every path that a stage reads or writes, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

# data/
TASKS = Path("data/tasks")
TRAIN_TASKS = TASKS / "train.parquet"
VALIDATION_TASKS = TASKS / "validation.parquet"
TEST_TASKS = TASKS / "test.parquet"
TRAJECTORIES = Path("data/trajectories")
PAIRS = Path("data/pairs.parquet")
PREFERENCES = Path("data/preferences")
EVALUATION_DIALOGUES = Path("data/evaluation")
ITERATIONS_DATA = Path("data/iterations")
INGEST = Path("data/ingest")  # what `sweetrl ingest` has seen, taken and put aside: DVC's, on the branch `ingest`
LABELS = Path("data/labels")  # what people said of dialogues in the viewer; for `sources.trajectories`, or an ingest
BATCHES = Path("data/batches")  # what was ingested, a folder for each batch, each with a .dvc file beside it
ACCEPTED = Path("data/accepted.json")  # the last accepted batch, which validation compares with
QUALITY_HISTORY = Path("data/quality-history.json")  # what was observed of the last accepted batches; no stage reads it

# models/
CRITIC = Path("models/critic")
POLICY = Path("models/policy")
ITERATIONS_MODELS = Path("models/iterations")
LAST_POLICY = ITERATIONS_MODELS / "policy"
ITERATION_BASE = Path("models/start")  # in the folder of an iteration: what it starts from

# reports/
VALIDATION = Path("reports/validation.json")
DATA_DOCS = Path("reports/data-docs")
DATA_QUALITY = Path("reports/data-quality.html")
EVALUATION = Path("reports/evaluation.json")
RESULTS = Path("reports/results.parquet")
REPORT = Path("reports/report.html")
GATE_REPORT = Path("reports/gate.html")  # of the last comparison here; each version keeps its own
METRICS = Path("reports/metrics.json")  # the few numbers that `dvc metrics` shows
PLOTS = Path("reports/plots")  # the tables that `dvc plots` draws
BEST_OF_N = Path("reports/best-of-n.json")
ITERATIONS_REPORT = Path("reports/iterations")
RUNS = Path("reports/runs")  # a file for each stage: what it has read and measured

# What may be removed at any time
SCRATCH = Path(".scratch")  # unfinished work, and finished work that DVC has not recorded yet
REFERENCES = Path(".cache/reference")  # log-probs of the reference policy, by weights and tokens: never stale
HASHES = Path(".cache/hashes")  # hashes of large files, by path, inode, size and times
SAMPLES = Path(".cache/samples")  # candidate replies, by weights, prompts, sampling and the sampling code's version

# Stands alone in the place of a stage's result where the method does without it.
SKIPPED = "skipped.json"

# In a scratch folder: the stage has ended well, and DVC has not recorded its result yet.
FINISHED = "finished.json"

# Names the project's folder for a stage that runs in a folder of its own.
ROOT_VARIABLE = "SWEETRL_ROOT"


def project_cache(folder: Path) -> Path | None:
    """Return the place of the cache `folder` in the project that we work in; None outside of one (no params.yaml)."""
    root = Path(os.environ.get(ROOT_VARIABLE) or "")
    return root / folder if (root / "params.yaml").exists() else None
