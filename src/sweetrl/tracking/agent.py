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
from sweetrl.tracking.chat_agent import AgentConfig, ChatAgent, base_under
from sweetrl.types import Prompt, Sampling


class AgentModel(PythonModel):
    """The agent behind `mlflow.pyfunc.load_model(...)`.

    `predict` takes one dialogue, a list of {"role", "content"} that ends with the user's words, and returns the reply
    without its thoughts.
    Parameters: temperature, seed, max_new_tokens. Equal dialogue, seed and machine give the equal reply. What the
    endpoint refuses (a temperature outside its range, a dialogue longer than the model's context) is a UserError here.
    """

    def load_context(self, context: Any) -> None:
        """Load the stored adapter on its base: the stored one, or the one that `model_config` points to."""
        self.config = AgentConfig.read(context.model_config)
        bundled, adapter = context.artifacts.get("base"), Path(context.artifacts["adapter"])
        base = base_under(adapter, self.config, None if bundled is None else Path(bundled))
        self.agent = ChatAgent.load(base, adapter, self.config)

    def predict(self, context, model_input, params=None):
        """Return the agent's reply to `model_input` (no type hints: MLflow would take them for a schema)."""
        values = {"temperature": 1.0, "seed": 0, "max_new_tokens": 1024} | (params or {})
        engine: Any = self.agent.engine  # `load` makes one in this process
        ids = self.agent.prompt_ids(_messages(model_input))
        if len(ids) >= engine.context:
            raise UserError(f"the dialogue has {len(ids)} tokens, the context {engine.context}; begin a new one.")
        reply = engine.sample([Prompt(ids, int(values["seed"]))], _sampling(values, self.config))[0][0].text
        return self.config.split(reply)[1]


def _sampling(values: Mapping[str, Any], config: AgentConfig) -> Sampling:
    """More new tokens than the agent's own become the agent's own; less than one, or no temperature, is a UserError."""
    temperature, tokens = float(values["temperature"]), int(values["max_new_tokens"])
    if temperature != config.temperature and not 0 <= temperature <= 2:  # nor NaN
        raise UserError(f"`temperature` is {temperature:g}; it must be a number from 0 to 2.")
    if tokens < 1:
        raise UserError(f"`max_new_tokens` is {tokens}; it must be a whole number from 1.")
    return Sampling(min(tokens, config.max_new_tokens), temperature, config.top_p)


def _messages(value: Any) -> list[dict[str, str]]:
    """Turn what MLflow hands over (a list of mappings, or a data frame of rows) into plain messages."""
    messages = value.to_dict("records") if hasattr(value, "to_dict") else list(value)
    try:
        plain = [{"role": str(message["role"]), "content": str(message["content"])} for message in messages]
    except (KeyError, TypeError):
        plain = []
    if not plain:
        raise UserError('the dialogue has no messages; give at least [{"role": "user", "content": "..."}].')
    return plain


set_model(AgentModel())
