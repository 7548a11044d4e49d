"""Where an agent to be handed over comes from: a registered version, or the folder of what the project has trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.config.settings import Settings
from sweetrl.config.yaml_files import read_yaml
from sweetrl.errors import UserError
from sweetrl.file_hashes import dvc_hash
from sweetrl.io import read_json
from sweetrl.models.check import ADAPTER, FULL, check_trained, is_trained
from sweetrl.paths import EVALUATION
from sweetrl.stages.registration import config_of as config_in_project
from sweetrl.tracking.chat_agent import AgentConfig, base_under, refuse_critic
from sweetrl.tracking.lineage import Lineage, lineage
from sweetrl.tracking.registry import Registry, split_reference
from sweetrl.tracking.store import require_store

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion


@dataclass(frozen=True)
class Handed:
    """An agent on this disk: `adapter` is a peft folder, `base` a folder or hub name; `version` is empty for a folder.

    `name` is the registered model's, or the folder's. Of full weights `adapter` and `base` are one folder.
    """

    name: str
    version: str
    adapter: Path
    base: str
    config: AgentConfig

    @property
    def title(self) -> str:
        """What people call it."""
        return f"{self.name} version {self.version}" if self.version else self.name


def fetch(reference: str, settings: Settings, folder: Path) -> Handed:
    """Return the agent that `reference` names: MODEL[@ALIAS], MODEL/VERSION, or an adapter's folder.

    What is registered is copied into `folder`, which must last as long as the agent is used.
    """
    if is_trained(reference):
        return from_folder(Path(reference), settings)
    if Path(reference).is_dir():
        check_trained(reference)
    name, alias = split_reference(reference, settings.tracking.model)
    named = settings.tracking.model_copy(update={"model": name})
    try:
        require_store(named)
    except UserError as error:
        if "/" not in reference or "@" in reference:
            raise
        raise UserError(
            f"{reference}: there is no such folder with an adapter, and no version of {name} is registered; name "
            "another one, or let `sweetrl run` train one."
        ) from error
    return from_registry(Registry(named), alias, folder)


def from_folder(adapter: Path, settings: Settings) -> Handed:
    """Return the agent in an adapter's folder, on the base that params.yaml names."""
    config = check_trained(adapter)
    refuse_critic(adapter, config)
    trained_on = config.get("base_model_name_or_path")
    if trained_on and Path(trained_on) != Path(settings.model.base):  # an exported one says ./models/base
        raise UserError(
            f"{adapter}: the adapter was trained on {trained_on}, but `model.base` in params.yaml is "
            f"{settings.model.base}; set `model.base` to the adapter's base."
        )
    talk = config_in_project(settings, Path.cwd())
    return Handed(adapter.resolve().name, "", adapter, base_under(adapter, talk), talk)


def from_registry(registry: Registry, reference: str, folder: Path) -> Handed:
    """Copy the registered version `reference` (an alias or a number) into `folder` and return the agent."""
    handed = copy_version(registry, reference, folder)
    return replace(handed, base=base_under(handed.adapter, handed.config, Path(handed.base) if handed.base else None))


def copy_version(registry: Registry, reference: str, folder: Path) -> Handed:
    """Copy the version into `folder` without looking for its base: `base` is the one stored with it, or empty."""
    version = registry.get(reference)
    config = config_of(registry, version, folder)
    artifacts = registry.download(version, "artifacts", folder)
    adapters = sorted(path for name in (ADAPTER, FULL) for path in artifacts.rglob(name))
    if not adapters:
        raise UserError(
            f"{registry.name} version {version.version}: there is nothing trained in it; register it again with "
            "`sweetrl run`."
        )
    bundled = artifacts / "base"
    base = str(bundled) if bundled.is_dir() else ""
    return Handed(registry.name, str(version.version), adapters[0].parent, base, config)


def config_of(registry: Registry, version: ModelVersion, folder: Path) -> AgentConfig:
    """Return how the agent of a version talks; only what says so is copied into `folder`, and that is small."""
    described = read_yaml(registry.download(version, "MLmodel", folder))
    try:
        return AgentConfig.read(described["flavors"]["python_function"]["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{registry.name} version {version.version}: its MLmodel does not say how an agent talks, so "
            "sweetrl has not registered it; name another version."
        ) from error


def facts_of(handed: Handed, settings: Settings, folder: Path) -> Lineage:
    """Return what the registry knows of where `handed` comes from; `folder` takes what must be fetched for that.

    `evaluation` is the whole of reports/evaluation.json. A folder's adapter is looked for by its content: only its hash
    is known of one that is not registered.
    """
    name, number = handed.name, handed.version
    if not number:
        alone = Lineage(name, "", adapter_hash=dvc_hash(handed.adapter), base_hash=handed.config.base_hash)
        name = settings.tracking.model
        try:
            require_store(settings.tracking)
        except UserError:  # nothing was registered yet
            return alone
        version = Registry(settings.tracking).find(alone.adapter_hash, alone.base_hash)
        if version is None:
            return alone
        number = str(version.version)
    registry = Registry(settings.tracking.model_copy(update={"model": name}))
    report = registry.download(registry.get(number), f"evaluation/{EVALUATION.name}", folder)
    return replace(lineage(f"{name}/{number}", settings.tracking), evaluation=read_json(report))
