"""A registered policy as an MLflow pyfunc: messages of a dialogue in, the agent's next reply out.

The registered model holds the adapter and a pointer to its base (name or folder, and the folder's hash), not the base
itself: a base of many gigabytes is stored once. This file is what MLflow loads ("models from code").
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel

from sweetrl.errors import UserError
from sweetrl.plugins import load_domain
from sweetrl.tracking.hashes import dvc_hash

BASE_VARIABLE = "SWEETRL_BASE_MODEL"


class AgentModel(PythonModel):
    """The agent behind `mlflow.pyfunc.load_model(...)`.

    `predict` takes one dialogue, a list of {"role", "content"} that ends with the user's words, and returns the
    reply.
    Parameters: temperature, seed, max_new_tokens. Equal dialogue, seed and machine give the equal reply.
    """

    def load_context(self, context: Any) -> None:
        """Load the base that `model_config` points to, with the stored adapter on it."""
        from sweetrl.engines.transformers import TransformersEngine

        self.config: dict[str, Any] = dict(context.model_config)
        base = find_base(self.config["base"], self.config["base_hash"], self.config["project"])
        self.engine = TransformersEngine(
            base,
            Path(context.artifacts["adapter"]),
            self.config["dtype"],
            self.config["device"],
            int(self.config["threads"]),
        )

    def predict(self, context, model_input, params=None):
        """Return the agent's reply to `model_input` (no type hints: MLflow would take them for a schema)."""
        from sweetrl.types import Prompt, Sampling

        values = {"temperature": 1.0, "seed": 0, "max_new_tokens": 1024} | (params or {})
        messages = read_messages(model_input)
        sampling = Sampling(
            max_new_tokens=int(values["max_new_tokens"]),
            temperature=float(values["temperature"]),
            top_p=float(self.config["top_p"]),
        )
        ids = self._prompt_ids(messages)
        return self.engine.sample([Prompt(ids, int(values["seed"]))], sampling)[0][0].text

    def _prompt_ids(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        system = self.config["system_prompt"]
        if messages[0]["role"] == "system":
            system, messages = messages[0]["content"], messages[1:]
        roles = [message["role"] for message in messages]
        if not roles or roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
            raise UserError(
                f"the dialogue's roles are {roles}; they must be user, assistant, user, ..., and end with user."
            )
        chat = self.engine.chat
        ids = chat.open(system, messages[0]["content"])
        for reply, words in zip(messages[1::2], messages[2::2], strict=True):
            ids = (*ids, *chat.reply(reply["content"]), *chat.follow(True, words["content"]))
        return ids


def read_messages(value: Any) -> list[dict[str, str]]:
    """Turn what MLflow hands over (mappings, {"messages": ...}, or a data frame of rows) into plain messages."""
    if hasattr(value, "to_dict"):
        value = value.to_dict("records")
    if isinstance(value, Mapping):
        value = value.get("messages", [])
    messages = list(value)
    if not messages:
        raise UserError('the dialogue has no messages; give at least [{"role": "user", "content": "..."}].')
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise UserError(f"message {index} of the dialogue needs the keys role and content.")
    return [{"role": str(message["role"]), "content": str(message["content"])} for message in messages]


def find_base(base: str, base_hash: str, project: str) -> str:
    """Return where the base model is on this machine: $SWEETRL_BASE_MODEL, `base` as it is, or `base` in its project.

    A folder with another content than the one the adapter was trained on is refused; a hub name is passed on.
    """
    places = [os.environ.get(BASE_VARIABLE, ""), base, str(Path(project) / base)]
    folders = [place for place in places if place and Path(place).is_dir()]
    if not folders:
        if base_hash:
            raise UserError(
                f"{base}: the base model is not here; run from the project's root or set {BASE_VARIABLE} to its folder."
            )
        return os.environ.get(BASE_VARIABLE) or base
    if base_hash and dvc_hash(Path(folders[0])) != base_hash:
        raise UserError(
            f"{folders[0]}: this is not the base model that the adapter was trained on (hash {base_hash[:8]}); "
            f"set {BASE_VARIABLE} to the right folder."
        )
    return folders[0]


def agent_config(settings: Any, project: Path) -> dict[str, Any]:
    """Return the `model_config` of a registered policy: the pointer to its base, and how it talks."""
    folder = project / settings.model.base
    return {
        "base": settings.model.base,
        "base_hash": dvc_hash(folder) if folder.is_dir() else "",
        "project": str(project.resolve()),
        "dtype": settings.model.dtype,
        "device": settings.model.device,
        "threads": settings.model.threads,
        "top_p": settings.agent.top_p,
        "system_prompt": load_domain(settings).system_prompt(settings.agent.prompt),
    }


set_model(AgentModel())
