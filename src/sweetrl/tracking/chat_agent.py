"""The agent of a registered version or an adapter's folder: its base found by content, and how it talks.

Knows no MLflow: the pyfunc (sweetrl.tracking.agent), the endpoint and the export (sweetrl.serve) share it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sweetrl.config.settings import AgentSettings, ModelSettings
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.engines.vllm import VllmEngine
from sweetrl.errors import UserError
from sweetrl.file_hashes import dvc_hash
from sweetrl.models.check import is_full
from sweetrl.paths import CRITIC, POLICY
from sweetrl.thoughts import split_thoughts
from sweetrl.tracking.store import reason
from sweetrl.types import AgentTurn

BASE_VARIABLE = "SWEETRL_BASE_MODEL"
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@dataclass(frozen=True)
class AgentConfig:
    """How an agent is loaded and how it talks; kept with every registered version.

    `base` is a folder (from the project's root) or a hub name. `base_hash` is the folder's DVC hash; a hub name has
    `base_revision` instead, the commit of the copy that was trained on, where it is known. `max_new_tokens` are those
    of a reply with its thoughts.
    """

    base: str
    base_hash: str = ""
    base_revision: str = ""
    dtype: str = "float32"
    device: str = "auto"
    threads: int = 2
    top_p: float = 1.0
    temperature: float = 1.0
    max_new_tokens: int = 1024
    max_turns: int = 10
    system_prompt: str = ""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    thought_marks: str = ""
    quantization: str = "none"

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> AgentConfig:
        """Return the config in a version's `model_config`; keys of other versions of sweetrl are left out."""
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})

    def split(self, reply: str) -> tuple[str, str]:
        """Return (thoughts, visible words) of the agent's raw reply."""
        return split_thoughts(reply, self.chat_options["marks"])

    @property
    def chat_options(self) -> dict[str, Any]:
        """What a ChatFormat takes besides the tokenizer."""
        return ModelSettings(
            template_options=dict(self.template_options), thought_marks=self.thought_marks
        ).chat_options

    @property
    def on_the_hub(self) -> bool:
        """Whether `base` is a name on the hub: models/base would be the repository of somebody who is called so."""
        was_folder = self.base_hash or Path(self.base).exists()
        return not was_folder and HUB_NAME.fullmatch(self.base) is not None


class ChatAgent:
    """An agent that answers dialogues given as messages: `engine` samples its tokens, `config` says how it talks."""

    def __init__(self, engine: TransformersEngine | VllmEngine, config: AgentConfig) -> None:
        self.engine, self.config = engine, config

    @classmethod
    def load(cls, base: str, adapter: Path, config: AgentConfig) -> ChatAgent:
        """Load an agent into this process; `base` is a folder or a hub name (`find_base`), `adapter` a peft folder."""
        how = (config.dtype, config.device, config.threads)
        more: dict[str, Any] = {"chat_options": config.chat_options, "quantization": config.quantization}
        return cls(TransformersEngine(base, adapter, *how, **more), config)

    def prompt_ids(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Return the token ids of a dialogue, up to where the agent's reply begins.

        `messages` are {"role", "content"}: the user first and last, the two taking turns. A system message in front
        takes the place of the agent's own. Another order is a UserError.
        """
        system = self.config.system_prompt
        if messages[0]["role"] == "system":
            system, messages = messages[0]["content"], messages[1:]
        check_turns(messages)
        prompts = self.engine.chat.begin(system, messages[0]["content"])
        for reply, words in zip(messages[1::2], messages[2::2], strict=True):
            prompts.add(AgentTurn(0, reply["content"]), words["content"])
        return prompts.ids

    def close(self) -> None:
        """Free the model."""
        self.engine.close()


def check_turns(messages: Sequence[Mapping[str, str]]) -> None:
    """Raise a UserError where user and assistant do not take turns from a user's message to a user's message."""
    roles = [message["role"] for message in messages]
    if not roles or roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
        shown = ", ".join(roles[:12]) + (", ..." if len(roles) > 12 else "")
        raise UserError(f"the dialogue's roles are [{shown}]; they must be user, assistant, user, ..., user.")


def find_base(config: AgentConfig, bundled: Path | None = None) -> str:
    """Return where the base model is on this machine.

    It is looked for in $SWEETRL_BASE_MODEL, in the folder `bundled` with a registered version, then by its name: a
    folder from where we are, or a hub name (in the revision that was trained on). A folder with another content than
    the one the adapter was trained on is a UserError.
    """
    own = os.environ.get(BASE_VARIABLE, "")
    if own and not Path(own).is_dir():
        raise UserError(f"{BASE_VARIABLE}: {own} is no folder; set it to the folder of the base model {config.base}.")
    places = [own, str(bundled or ""), config.base]
    folder = next((place for place in places if place and Path(place).is_dir()), None)
    if folder is not None and config.base_hash not in ("", dvc_hash(Path(folder))):
        raise UserError(f"{folder}: the adapter's base is another (hash {config.base_hash[:8]}); set {BASE_VARIABLE}.")
    if folder is not None:
        return folder
    if config.base_hash:
        raise UserError(f"{config.base}: the base (hash {config.base_hash[:8]}) is not here; set {BASE_VARIABLE}.")
    if not config.base_revision:
        return config.base
    from huggingface_hub import snapshot_download

    try:
        ignored = ["*.bin", "*.pt", "*.pth", "*.ckpt"]
        return snapshot_download(config.base, revision=config.base_revision, ignore_patterns=ignored)
    except Exception as error:  # offline, unknown, forbidden: the hub's client has an exception for each
        raise UserError(
            f"{config.base}: revision {config.base_revision[:12]} cannot be had ({reason(error)}); allow the network "
            f"with HF_HUB_OFFLINE=0, or set {BASE_VARIABLE} to its folder."
        ) from error


def base_under(adapter: Path, config: AgentConfig, bundled: Path | None = None) -> str:
    """Return where the model is that `adapter` belongs on (`find_base`); full weights are a model themselves."""
    return str(adapter) if is_full(adapter) else find_base(config, bundled)


def agent_config(model: ModelSettings, agent: AgentSettings, system_prompt: str, project: Path) -> AgentConfig:
    """Return the config of the policy with the base `model`, as `agent` says; a relative base is in `project`.

    Of a hub's model the commit of the copy in this machine's cache is noted, if there is one.
    """
    from huggingface_hub import try_to_load_from_cache

    folder, copy = project / model.base, None
    if not folder.is_dir() and HUB_NAME.fullmatch(model.base):
        copy = try_to_load_from_cache(model.base, "config.json")
    content = dvc_hash(folder) if folder.is_dir() else ""
    revision = Path(copy).parent.name if isinstance(copy, str) else ""
    named = {"dtype", "device", "threads", "quantization", "template_options", "thought_marks"}
    loading = model.model_dump(include=named)
    talking = agent.model_dump(include={"top_p", "temperature", "max_turns"}) | {"max_new_tokens": agent.reply_tokens}
    return AgentConfig(model.base, content, revision, system_prompt=system_prompt, **loading, **talking)


def refuse_critic(adapter: Path, config: Mapping[str, Any]) -> None:
    """Raise UserError for a critic's folder where an agent's is needed; `config` is its adapter_config.json."""
    if config.get("modules_to_save") or adapter.resolve().parts[-len(CRITIC.parts) :] == CRITIC.parts:
        raise UserError(f"{adapter}: this is a critic, which does not talk; name an agent: {POLICY} or MODEL@ALIAS.")
