"""Registering what a project has trained: its version's tags, and whether it is registered already.

All of params.yaml has a say here: the domain, its users and rewards, the agent, the base, and the store.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.api.calls import chosen, evaluated
from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.file_hashes import dvc_hash, file_hash, identity
from sweetrl.io import digest, read_json, write_json
from sweetrl.models.check import is_trained
from sweetrl.paths import EVALUATION, POLICY, TEST_TASKS
from sweetrl.plugins import KEYS
from sweetrl.rollout.users import user_name
from sweetrl.stages.parameters import own_sources
from sweetrl.tracking.chat_agent import AgentConfig, agent_config
from sweetrl.tracking.lineage import data_hashes
from sweetrl.tracking.registry import CHALLENGER, Registration, Registry, cost, headline, log_version
from sweetrl.tracking.runs import git_state
from sweetrl.tracking.store import check_active, embedded_database

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

REGISTERED = Path(".cache/registered.json")  # the answer of `current_registration`, and of which store


def config_of(settings: Settings, project: Path) -> AgentConfig:
    """Return the config of the policy that `settings` describe; a relative base is looked up in `project`."""
    settings = evaluated(settings)
    agent = settings.agent
    return agent_config(settings.model, agent, load_domain(settings).system_prompt(agent.prompt), project)


def evaluation_key(settings: Settings, root: Path) -> str:
    """Return what two evaluations must share to be compared task by task: the tasks and how they are attempted."""
    reward = settings.reward
    price = [reward.turn_cost] if reward.turn_cost else []
    rules = [*load_domain(settings).evaluation_rules(), reward.function, *price]
    own = own_sources(settings, root)
    code = {key: dvc_hash(path) for key, path in sorted(own.items()) if key != "method"}
    agent = evaluated(settings).agent.model_dump(mode="json", by_alias=True)
    how = [agent, settings.simulator.fingerprint(), rules, settings.evaluate.tasks, settings.seed, code]
    return digest(file_hash(root / TEST_TASKS), how)


def evaluation_tags(settings: Settings, root: Path, results: Path | None = None) -> dict[str, str]:
    """Return the tags that sum up the last evaluation, or the one whose `results` lie in a folder of their own."""
    measured = headline((results or root) / EVALUATION)
    tags = {"evaluation_key": evaluation_key(settings, root), "evaluation": json.dumps(measured)}
    return tags | {"evaluation_user": user_name(load_domain(settings))}


def chosen_code(settings: Settings, root: Path) -> dict[str, str]:
    """Return key of params.yaml -> the domain, method, reward and user chosen, your own with the hash of its source."""
    own = own_sources(settings, root)
    named = [(*KEYS[group], name) for group, name in chosen(settings).items() if name]
    return {key: f"{name} {dvc_hash(own[place])}" if place in own else name for key, place, name in named}


def register_policy(
    settings: Settings, root: Path, parent_run: str | None = None, home: Path | None = None
) -> Registration:
    """Register models/policy of `root` as a new version of `tracking.model` under the alias `challenger`.

    `home` (default `root`) is the checkout in which a relative base lies.

    Idempotent: an adapter that is registered already keeps its version (its evaluation is brought up to date).
    """
    if not is_trained(root / POLICY):
        raise UserError(f"{root / POLICY}: there is no trained policy; run the pipeline first (`sweetrl run`).")
    registry = Registry(settings.tracking, root)
    config = config_of(settings, home or root)
    adapter, tags = dvc_hash(root / POLICY), evaluation_tags(settings, root)
    if (version := registry.find(adapter, config.base_hash)) is not None:
        if not tags.items() <= version.tags.items():
            registry.attach_evaluation(str(version.version), root, tags)
        return _registered(registry, version)
    commit, dirty = git_state(root)
    runs, lock = registry.store.stage_runs(root), root / "dvc.lock"
    tags |= {
        "adapter_hash": adapter,
        "base_hash": config.base_hash,
        "base": config.base,
        "base_revision": config.base_revision,
        "git_commit": commit,
        "git_dirty": str(dirty).lower(),
        "dvc_lock": file_hash(lock) if lock.exists() else "",
        "code": json.dumps(chosen_code(settings, root)),
        "data": json.dumps(data_hashes(root)),
        "cost": json.dumps(cost(runs.values())),
        "stage_runs": json.dumps({stage: run.info.run_id for stage, run in runs.items()}),
        "parent_run": parent_run or "",
    }
    trainer = runs.get("train-policy") or (registry.store.run(parent_run) if parent_run else None)
    source_run = trainer.info.run_id if trainer else None
    check_active(registry.store)
    trained = f"{settings.method} on the domain {settings.suite}"
    base = (home or root) / config.base
    here = root.resolve()
    code = [str(path.relative_to(here)) for path in own_sources(settings, root).values() if path.is_relative_to(here)]
    number = log_version(registry.store, settings.tracking, root, config, base, trained, tags, source_run, code)
    # Looking and creating are two steps: where two processes created a version at once, the later version is deleted.
    first = registry.find(adapter, config.base_hash)
    if first is not None and str(first.version) != number:
        registry.client.delete_model_version(registry.name, number)
        return _registered(registry, first)
    registry.describe(number)
    registry.set_alias(CHALLENGER, number)
    return Registration(registry.name, number, True, registry.aliases_of(number), tags)


def current_registration(settings: Settings, root: Path) -> Registration | None:
    """Return the version that models/policy of `root` is registered as, with the evaluation that lies there.

    None where registering would change anything. MLflow takes seconds to import: while the file of an embedded store
    is unchanged, the last answer is taken from `.cache/registered.json`.
    """
    config, adapter = config_of(settings, root), dvc_hash(root / POLICY)
    tags, database = evaluation_tags(settings, root), embedded_database(settings.tracking, root)
    question = ""
    if database is not None:
        if not database.exists():
            return None
        store = str(database), identity(database), settings.tracking.model
        question = digest(*store, adapter, config.base_hash, tags)
    file = root / REGISTERED
    note = read_json(file) if question and file.exists() else {}
    if note.get("question") == question != "":
        kept = note["registration"]
        return Registration(**kept | {"aliases": tuple(kept["aliases"])})
    registry = Registry(settings.tracking, root)
    version = registry.find(adapter, config.base_hash)
    if version is None or not tags.items() <= version.tags.items():
        return None
    registration = _registered(registry, version)
    if question:
        write_json(file, {"question": question, "registration": asdict(registration)})
    return registration


def _registered(registry: Registry, version: ModelVersion) -> Registration:
    number = str(version.version)
    return Registration(registry.name, number, False, registry.aliases_of(number), dict(version.tags))
