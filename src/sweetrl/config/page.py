"""docs/parameters.md, made of the settings' own descriptions."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sweetrl.config.sections import PassTokens, is_section
from sweetrl.config.training import TrainerSettings

HEAD = """# Parameters

Every key of `params.yaml`, generated from the settings' own descriptions by `python -m sweetrl.config.settings`.
Unknown keys are errors. The defaults are the paper's or the official
protocol's numbers where there are any; the project's `params.yaml` spells out the values of the embedded
run, a small agent on two CPU cores."""


def page(settings: type[BaseModel]) -> str:
    """Return the page: every key of the tree with its default, its allowed values and its description."""
    return "\n\n".join([HEAD, *_describe("", settings)]) + "\n"


def _describe(name: str, section: type[BaseModel]) -> list[str]:
    """The tables of a section, with a heading where it has a name, and of those nested in it."""
    fields = {
        field.alias or key: field
        for key, field in section.model_fields.items()
        if name == "trainer" or not _shared(section, key)
    }
    parts = [f"## {name}", cleandoc(section.__doc__ or "")] if name else []
    if len(fields) < len(section.model_fields):
        parts.append("The other keys are those of [`trainer`](#trainer).")
    parts.append(_table({key: field for key, field in fields.items() if not is_section(field.annotation)}))
    for key, field in fields.items():
        if is_section(field.annotation):
            parts += _describe(f"{name}.{key}" if name else key, field.annotation)
    return parts


def _shared(section: type[BaseModel], key: str) -> bool:
    """Whether `section` has `key` as `trainer` has it: with its default and its description."""
    own, shared = section.model_fields[key], TrainerSettings.model_fields.get(key)
    if not issubclass(section, TrainerSettings) or shared is None:
        return False
    return (own.default, own.description) == (shared.default, shared.description)


def _table(fields: dict[str, FieldInfo]) -> str:
    rows = ["| key and default | allowed | what it is |", "|---|---|---|"]
    for name, field in fields.items():
        default = field.get_default(call_default_factory=True)
        default = str(default).lower() if isinstance(default, bool) else default
        text = " ".join((field.description or "").split()).replace("|", "\\|")
        shown = "" if default in ("", None) else f": {default}"
        rows.append(f"| `{name}{shown}` | {_allowed(field)} | {text} |")
    return "\n".join(rows)


def _allowed(field: FieldInfo) -> str:
    """The values that a field takes, in words: its choices, or its type and bounds."""
    if get_origin(field.annotation) is Literal:
        return _choices(field.annotation)
    if get_origin(field.annotation) is list:
        return f"list of {_choices(get_args(field.annotation)[0]) or 'texts'}"
    names: dict[Any, str] = {
        int: "integer", float: "number", str: "text", bool: "`true`, `false`", dict[str, Any]: "a mapping",
        float | None: "number or empty", PassTokens: "integer ≥ 1, `auto`",
    }  # fmt: skip
    words = [names.get(field.annotation, str(field.annotation))]
    for bound in field.metadata:
        for sign, attribute in (("≥", "ge"), (">", "gt"), ("≤", "le"), ("<", "lt")):
            if (limit := getattr(bound, attribute, None)) is not None:
                words.append(f"{sign} {limit}" if isinstance(limit, int) else f"{sign} {limit:g}")
    return " ".join(words)


def _choices(kind: Any) -> str:
    return ", ".join(f"`{choice}`" for choice in get_args(kind))
