"""A registered policy as an MLflow pyfunc: messages of a dialogue in, the agent's next reply out.

This file is what MLflow loads ("models from code"); a registered version carries the package beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel

from sweetrl.errors import UserError
from sweetrl.tracking.chat_agent import AgentConfig, ChatAgent, find_base
from sweetrl.types import Prompt, Sampling


class AgentModel(PythonModel):
    """The agent behind `mlflow.pyfunc.load_model(...)`.

    `predict` takes one dialogue, a list of {"role", "content"} that ends with the user's words, and returns the
    reply.
    Parameters: temperature, seed, max_new_tokens. Equal dialogue, seed and machine give the equal reply.
    """

    def load_context(self, context: Any) -> None:
        """Load the stored adapter on its base: the stored one, or the one that `model_config` points to."""
        self.config = AgentConfig.read(context.model_config)
        bundled = context.artifacts.get("base")
        base = find_base(self.config, None if bundled is None else Path(bundled))
        self.agent = ChatAgent.load(base, Path(context.artifacts["adapter"]), self.config)

    def predict(self, context, model_input, params=None):
        """Return the agent's reply to `model_input` (no type hints: MLflow would take them for a schema)."""
        values = {"temperature": 1.0, "seed": 0, "max_new_tokens": 1024} | (params or {})
        messages = read_messages(model_input)
        sampling = Sampling(
            max_new_tokens=int(values["max_new_tokens"]),
            temperature=float(values["temperature"]),
            top_p=self.config.top_p,
        )
        prompt = Prompt(self.agent.prompt_ids(messages), int(values["seed"]))
        return self.agent.engine.sample([prompt], sampling)[0][0].text


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


set_model(AgentModel())
