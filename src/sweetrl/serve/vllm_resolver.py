"""A plug-in of vLLM: requests for `MODEL@ALIAS` or `MODEL/VERSION` get that adapter from the MLflow registry.

vLLM finds it by its entry point (`vllm.general_plugins`) wherever sweetrl and mlflow-skinny are installed beside it. It
does nothing unless SWEETRL_LORA_MODELS lists the registered models that a request may name, because a request's
`model` is a stranger's text. vLLM asks once for each name and keeps the adapter until it is unloaded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UnknownVersion

if TYPE_CHECKING:
    from sweetrl.tracking.chat_agent import AgentConfig

logger = logging.getLogger("sweetrl")

MODELS = "SWEETRL_LORA_MODELS"
_NAMED = re.compile(r"(?P<model>[^/@\s]+)[@/](?P<version>[A-Za-z0-9_.-]{1,64})")


def register() -> None:
    """Give vLLM the resolver, if SWEETRL_LORA_MODELS names models; vLLM calls this in each of its processes."""
    models = frozenset(os.environ.get(MODELS, "").replace(",", " ").split())
    if not models:
        return
    from vllm.lora.request import LoRARequest
    from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

    class RegistryResolver(LoRAResolver):
        """Adapters of the registered models that SWEETRL_LORA_MODELS names."""

        async def resolve_lora(self, base_model_name: str, lora_name: str) -> Any:
            """Return the adapter that `lora_name` means, on this disk; None where it means none of ours."""
            path = await asyncio.to_thread(find_adapter, lora_name, base_model_name, models)
            # vLLM replaces the number by one of its own.
            return None if path is None else LoRARequest(lora_name, 1, str(path))

    LoRAResolverRegistry.register_resolver("sweetrl registry", RegistryResolver())


def find_adapter(name: str, served: str, models: frozenset[str]) -> Path | None:
    """Copy the adapter that `name` means and return its folder, which lasts as long as this process.

    `served` is the base that the server has, `models` whose versions may be asked for. None where `name` is of
    another kind or not known, or its adapter belongs on another base (the log says which). A registry that does not
    answer is a UserError: the request fails, and the next one asks again.
    """
    named = _NAMED.fullmatch(name)
    if named is None or named["model"] not in models:
        return None
    from sweetrl.config.settings import TrackingSettings
    from sweetrl.models.check import is_full
    from sweetrl.serve.source import config_of, copy_version
    from sweetrl.tracking.registry import Registry

    registry = Registry(TrackingSettings(model=named["model"]))
    folder = tempfile.TemporaryDirectory(prefix="sweetrl-lora-", ignore_cleanup_errors=True)
    try:
        version = registry.get(named["version"])
        # Before anything large is copied: who is refused asks again.
        if reason := _other_base(config_of(registry, version, Path(folder.name)), served):
            logger.warning("%s: %s", name, reason)
            return None
        handed = copy_version(registry, str(version.version), Path(folder.name))
        if is_full(handed.adapter):
            logger.warning("%s: it has full weights and no adapter; serve it as a model of its own", name)
            return None
    except UnknownVersion as error:
        logger.warning("%s: %s", name, error)
        return None
    _kept.append(folder)
    logger.info("%s is version %s of %s", name, handed.version, handed.name)
    return handed.adapter


_kept: list[tempfile.TemporaryDirectory[str]] = []  # vLLM reads an adapter again when it has made room for others


def _other_base(config: AgentConfig, served: str) -> str:
    """Say what is wrong with the served base; empty where it is the one that the adapter was trained on."""
    from sweetrl.file_hashes import dvc_hash

    if config.base_hash and Path(served).is_dir():
        if dvc_hash(Path(served)) == config.base_hash:
            return ""
        return f"the adapter was trained on another base than the server's {served} (hash {config.base_hash[:8]})."
    # With HF_HUB_OFFLINE=1 vLLM takes the folder in the hub's cache for the name.
    revision = config.base_revision or Path(served).name
    snapshot = (f"models--{config.base.replace('/', '--')}", "snapshots", revision)
    if config.base == served or Path(served).parts[-3:] == snapshot:
        return ""
    revision = f" (revision {config.base_revision[:12]})" if config.base_revision else ""
    return f"the adapter was trained on {config.base}{revision}, and the server has {served}."
