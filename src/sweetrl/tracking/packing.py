"""What a registered version holds: adapter, base if it is small, the package's code, requirements, an example, lineage.

A machine that has the version and a package index needs nothing else: no checkout, and no package of that name.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.config.settings import TrackingSettings
from sweetrl.file_hashes import IGNORED
from sweetrl.io import write_json
from sweetrl.paths import EVALUATION, EVALUATION_DIALOGUES, POLICY, RESULTS
from sweetrl.tracking.chat_agent import AgentConfig
from sweetrl.tracking.store import Store, allowing

if TYPE_CHECKING:
    from mlflow import MlflowClient

MIB = 2**20
# What the stored code imports to load an agent and let it answer, with what transformers and peft load without asking.
NEEDED = ("accelerate", "mlflow", "numpy", "peft", "pydantic", "safetensors", "tokenizers", "torch", "transformers")
DIALOGUES = "dialogues.json"  # beside a version's results: what its evaluated dialogues took
EXAMPLE = [{"role": "user", "content": "I want a function that computes the price of a ticket. def price(hours)"}]


def log_version(
    store: Store,
    tracking: TrackingSettings,
    root: Path,
    config: AgentConfig,
    base: Path | None,
    trained: str,
    tags: dict[str, str],
    source_run: str | None,
) -> str:
    """Store models/policy of `root` as a new version of `tracking.model`, and return its number.

    `base` is the base's folder where there is one; it is stored, too, if it is no larger than `tracking.base_mib`.
    `trained` says by which method and on which domain.
    """
    client, name = store.client, tracking.model
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        files = base.rglob("*") if base is not None else ()
        small = sum(path.stat().st_size for path in files if path.is_file()) <= tracking.base_mib * MIB
        bundled = base if small else None
        _save(path, Path(folder), root / POLICY, bundled, config)
        logged = client.create_logged_model(store.experiment_id, name, source_run_id=source_run, model_type="agent")
        client.log_model_artifacts(logged.model_id, str(path))
        for extra in ("dvc.lock", "params.yaml"):
            if (root / extra).exists():
                client.log_model_artifact(logged.model_id, str(root / extra), "lineage")
    keep_results(client, logged.model_id, root)
    client.finalize_logged_model(logged.model_id, "READY")
    with allowing("RESOURCE_ALREADY_EXISTS"):
        client.create_registered_model(name, description="SWEET-RL policies (peft adapters on a base model)")
    created = client.create_model_version(
        name,
        source=f"models:/{logged.model_id}",
        run_id=source_run,
        tags=tags,
        description=description(trained, config, bundled is not None),
        model_id=logged.model_id,  # servers refuse a source of this kind without it
    )
    return str(created.version)


def keep_results(client: MlflowClient, model_id: str, root: Path) -> None:
    """Store (or replace) with a logged model what the policy of `root` reached on the held-out tasks."""
    with tempfile.TemporaryDirectory() as folder:
        for result in (root / EVALUATION, root / RESULTS, write_dialogue_facts(root, Path(folder))):
            client.log_model_artifact(model_id, str(result), "evaluation")


def write_dialogue_facts(root: Path, folder: Path) -> Path:
    """Write into `folder` what the trained policy's evaluated dialogues of `root` took, and return the file's path.

    By task id: `tokens`, what the agent generated (null where a server did not hand out ids), and `user`, who answered
    it. Without dialogues nothing is known, and the file holds nothing.
    """
    from sweetrl.colbench.store import TrajectoryStore

    shards, path = root / EVALUATION_DIALOGUES / "trained", folder / DIALOGUES
    facts: dict[str, dict[str, Any]] = {}
    for dialogue in TrajectoryStore(shards).read() if shards.exists() else ():
        counts = [len(turn.token_ids) for turn in dialogue.turns]
        facts[dialogue.task.id] = {"tokens": sum(counts) if all(counts) else None, "user": dialogue.simulator}
    write_json(path, facts)
    return path


def _save(path: Path, scratch: Path, adapter: Path, base: Path | None, config: AgentConfig) -> None:
    import mlflow
    import pandas
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    import sweetrl
    from sweetrl.tracking import agent

    def copied(folder: Path, name: str, *ignored: str) -> str:
        """Under a fixed name: the version says where its parts came from, and no path of ours means anything there."""
        return str(shutil.copytree(folder, scratch / name, ignore=shutil.ignore_patterns(*ignored)))

    artifacts = {"adapter": copied(adapter, POLICY.name, *IGNORED)}
    if base is not None:
        artifacts["base"] = copied(base, "base", *IGNORED)
    message = Schema([ColSpec("string", "role"), ColSpec("string", "content")])
    temperature = ParamSpec("temperature", "double", config.temperature)
    tokens = ParamSpec("max_new_tokens", "long", config.max_new_tokens)
    params = ParamSchema([temperature, ParamSpec("seed", "long", 0), tokens])
    mlflow.pyfunc.save_model(
        str(path),
        python_model=str(agent.__file__),
        artifacts=artifacts,
        code_paths=[copied(Path(str(sweetrl.__file__)).parent, "sweetrl", "__pycache__", ".*")],
        model_config=asdict(config),
        signature=ModelSignature(message, Schema([ColSpec("string")]), params),
        input_example=pandas.DataFrame(EXAMPLE),
        # As a package index has them: behind a plus (torch's 2.8.0+cpu) is a build, which no index of its own has.
        pip_requirements=[f"{name}=={metadata.version(name).partition('+')[0]}" for name in NEEDED],
    )


def description(trained: str, config: AgentConfig, bundled: bool) -> str:
    """Return what the registry's page says about a version."""
    base = f"{config.base} ({config.base_hash or config.base_revision or 'content not recorded'})"
    where = "stored with it" if bundled else "not stored with it: set SWEETRL_BASE_MODEL to its folder"
    return (
        f"A peft adapter trained by {trained}. Its base is {base}, {where}. "
        f"It talks over at most {config.max_turns} turns. "
        "Input: the messages of one dialogue, ending with the user's; output: the agent's reply."
    )
