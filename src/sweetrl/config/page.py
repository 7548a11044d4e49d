"""docs/parameters.md, made of the settings' own descriptions."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sweetrl.config.sections import PassTokens, is_section

HEAD = """# Parameters

Every key of `params.yaml`, generated from the settings' own descriptions by `python -m sweetrl.config.settings`.
Unknown keys are errors. The defaults are the paper's or the official
protocol's numbers where there are any; the project's `params.yaml` spells out the values of the embedded
run, a small agent on two CPU cores."""


# The first section with a key, by the class that declares it and the name of the key.
Described = dict[tuple[type, str], str]


def page(settings: type[BaseModel]) -> str:
    """Return the page: every key of the tree with its default, its allowed values and its description."""
    return "\n\n".join([HEAD, *_describe("", settings, {})]) + "\n"


def _describe(name: str, section: type[BaseModel], described: Described) -> list[str]:
    """The tables of a section, with a heading where it has a name, and of those nested in it.

    Keys that it inherits, and that an earlier section has as they are, are only named.
    """
    own: dict[str, FieldInfo] = {}
    shared: dict[str, list[str]] = {}
    for key, field in section.model_fields.items():
        first = described.setdefault((_declares(section, key), key), name)
        if first == name:
            own[field.alias or key] = field
        else:
            shared.setdefault(first, []).append(f"`{key}`")
    parts = [f"## {name}", cleandoc(section.__doc__ or "")] if name else []
    for first, keys in shared.items():
        # Who inherits from `trainer` has all of its keys, from another section some of them.
        subject = "The other keys" if first == "trainer" else ", ".join(keys)
        parts.append(f"{subject} are those of [`{first}`](#{first.replace('.', '')}).")
    parts.append(_table({key: field for key, field in own.items() if not is_section(field.annotation)}))
    for key, field in own.items():
        if is_section(field.annotation):
            parts += _describe(f"{name}.{key}" if name else key, field.annotation, described)
    return parts


def _declares(section: type[BaseModel], key: str) -> type:
    """The class that says what `key` of `section` is."""
    return next(each for each in section.__mro__ if key in vars(each).get("__annotations__", {}))


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
