"""The page of the command line, from the commands themselves: usage, arguments and options of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_origin


def plain(text: str | None) -> str:
    """Return help text as one line of Markdown, for a cell of a table."""
    words = " ".join((text or "").split())
    return words.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[").replace("*", "\\*")


def leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Go through the commands, those of groups included, each with the words that call it."""
    for name, child in getattr(command, "commands", {}).items():
        if child.hidden:
            continue
        if hasattr(child, "commands"):
            yield from leaves(child, (*words, name))
        else:
            yield (*words, name), child


def is_argument(parameter: Any) -> bool:
    """Say whether a parameter is given by its place and not by its name."""
    return not parameter.opts[0].startswith("-")


def value_of(parameter: Any) -> str:
    """Return what stands for an option's value: its choices, its own word, or its type."""
    kind = parameter.type_descriptor.annotation
    if get_origin(kind) is Literal:
        return "|".join(kind.__args__)
    kind = getattr(kind, "__args__", [kind])[0]
    return parameter.metavar or {"str": "TEXT", "int": "N", "float": "X"}.get(kind.__name__, kind.__name__.upper())


def title(parameter: Any) -> str:
    """Return an argument or an option with its value, as one would type it."""
    if is_argument(parameter):
        return f"`{argument(parameter)}`"
    words = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return f"`{words}`" if parameter.is_flag else f"`{words} {value_of(parameter)}`".replace("|", "\\|")


def argument(parameter: Any) -> str:
    """Return the word that stands for an argument."""
    return parameter.metavar or parameter.name.upper()


def default(parameter: Any) -> str:
    """Return a parameter's default as one would write it; empty where there is none."""
    value = getattr(parameter.default, "value", parameter.default)
    if parameter.required or value in (None, False, "", (), []) or callable(value):
        return "`0`" if value == 0 and value is not False and not isinstance(value, str) and value is not None else ""
    return "on" if value is True else f"`{value}`"


def rows(command: Any) -> Iterator[str]:
    """Yield a row for each argument and option that `--help` shows."""
    for parameter in command.params:
        if not parameter.hidden and parameter.name != "help":
            note = plain(getattr(parameter, "help", None)) + (" **Required.**" if parameter.required else "")
            yield f"| {title(parameter)} | {default(parameter)} | {note} |"


def command_page() -> str:
    """Return the part of docs/cli.md that lists every command, as Markdown."""
    from typer.main import get_command

    from sweetrl.cli.main import app

    parts = []
    for words, command in leaves(get_command(app), ("sweetrl",)):
        places = [one for one in command.params if is_argument(one) and not one.hidden]
        shown = [argument(one) if one.required else f"[{argument(one)}]" for one in places]
        parts += [f"## {' '.join(words)}", "```text\n" + " ".join([*words, *shown, "[OPTIONS]"]) + "\n```"]
        parts.append("\n".join(plain(line) for line in (command.help or "").splitlines()))
        if found := list(rows(command)):
            parts.append("\n".join(["| argument or option | default | what it does |", "|---|---|---|", *found]))
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(command_page())
