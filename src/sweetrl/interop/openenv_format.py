"""What an agent's words are as an action of an OpenEnv environment, and what an observation says to the agent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweetrl.engines.remote import clean
from sweetrl.errors import UserError
from sweetrl.interop.openenv_wire import Description, InvalidAction, Schema, ServerError, parse_json

LONGEST_TEXT = 100_000  # characters of an observation that are kept

_FENCED = re.compile(r"```(?:json)?[^\S\n]*+\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Format:
    """`action_field` takes the agent's words (empty: they are the whole action as JSON), `observation_field` is what
    the user says (empty: the whole observation as JSON).
    """

    actions: Schema
    action_field: str
    observation_field: str

    @classmethod
    def of(cls, server: Description, action_field: str, observation_field: str) -> Format:
        """Return the format of a server; empty fields are chosen by its schemas. UserError for unknown ones."""
        for option, name, schema in (
            ("action_field", action_field, server.action),
            ("observation_field", observation_field, server.observation),
        ):
            if name and schema.fields and name not in schema.fields:
                raise UserError(f"suite_options.{option}: there is no field `{name}`, but {', '.join(schema.fields)}.")
        if not action_field and len(server.action.required) == 1:
            action_field = server.action.required[0]
        if not observation_field:
            texts = [name for name, kind in server.observation.fields.items() if kind.get("type") == "string"]
            required = [name for name in texts if name in server.observation.required]
            observation_field = next((names[0] for names in (required, texts) if len(names) == 1), "")
        return cls(server.action, action_field, observation_field)

    @property
    def instructions(self) -> str:
        """How an agent has to write its actions."""
        if not self.action_field:
            fields = json.dumps(self.actions.fields, ensure_ascii=False)
            return clean(f"Each of your replies is an action: a JSON object with these fields: {fields}")
        kind = self._kind()
        shape = f" (JSON of type {kind['type']})" if self._is_json() else ""
        description = kind.get("description")
        about = f": {description}" if isinstance(description, str) and description else "."
        return clean(f"Each of your replies is an action, as it is: the {self.action_field}{shape}{about}")

    def action(self, reply: str) -> dict[str, Any]:
        """Return the action that a reply of the agent is; InvalidAction where it is none."""
        if not self.action_field:
            fenced = _FENCED.search(reply)
            action = _value(fenced[1] if fenced else reply)
            if not isinstance(action, dict):
                raise InvalidAction("it must be a JSON object")
            return action
        if self._is_json():
            return {self.action_field: _value(reply)}
        return {self.action_field: reply.strip() if {"enum", "const"} & set(self._kind()) else reply}

    def text(self, observation: Mapping[str, Any]) -> str:
        """Return what an observation says; ServerError where its field is not there."""
        if self.observation_field:
            if self.observation_field not in observation:
                raise ServerError(f"an observation of the server has no field `{self.observation_field}`")
            value = observation[self.observation_field]
        else:
            value = {name: one for name, one in observation.items() if name != "metadata"}
        return clean((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))[:LONGEST_TEXT])

    def _kind(self) -> Mapping[str, Any]:
        return self.actions.fields.get(self.action_field, {})

    def _is_json(self) -> bool:
        return self._kind().get("type") in ("integer", "number", "boolean", "array", "object")


def _value(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise InvalidAction("it must be JSON") from error
