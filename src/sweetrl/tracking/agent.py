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

LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.0, 2.0


class AgentModel(PythonModel):
    """The agent behind `mlflow.pyfunc.load_model(...)`.

    `predict` takes one dialogue, a list of {"role", "content"} that ends with the user's words, and returns the
    reply.
    Parameters: temperature, seed, max_new_tokens. Equal dialogue, seed and machine give the equal reply. What the
    endpoint refuses (a temperature outside its range, a dialogue longer than the model's context) is a UserError here.
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
        sampling = read_sampling(values, self.config)
        ids = self.agent.prompt_ids(messages)
        context = self.agent.engine.context
        if len(ids) >= context:
            raise UserError(
                f"the dialogue's {len(ids)} tokens leave no room for a reply in the model's context of {context}; "
                "begin a new one."
            )
        return self.agent.engine.sample([Prompt(ids, int(values["seed"]))], sampling)[0][0].text


def read_sampling(values: Mapping[str, Any], config: AgentConfig) -> Sampling:
    """Return how the parameters `values` let the agent of `config` sample, in the ranges that the endpoint has.

    More new tokens than the agent's own become the agent's own; less than one, or no such temperature, is a UserError.
    """
    temperature, tokens = float(values["temperature"]), int(values["max_new_tokens"])
    if temperature != config.temperature and not LEAST_TEMPERATURE <= temperature <= MOST_TEMPERATURE:  # nor NaN
        raise UserError(
            f"`temperature` is {temperature:g}; it must be a number from {LEAST_TEMPERATURE:g} to {MOST_TEMPERATURE:g}."
        )
    if tokens < 1:
        raise UserError(f"`max_new_tokens` is {tokens}; it must be a whole number from 1.")
    return Sampling(min(tokens, config.max_new_tokens), temperature, config.top_p)


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
