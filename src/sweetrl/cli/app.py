"""What all commands of `sweetrl` have in common: -h and --quiet, one sentence for each mistake, and Ctrl-C.

Help is plain text in whole sentences: it can be read aloud and piped, and nothing is loaded for it.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from sweetrl.cli.options import STDOUT, Quiet
from sweetrl.console.logs import QUIET, any_letters, own_words_only
from sweetrl.errors import UserError, sentence_of

# What an impossible command line raises; where its class lies differs between typer's versions.
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]

# Options that name files of this machine.
FILES = ("--adapter", "--answers", "--dialogues", "--held-out", "--out", "--recording", "--tasks", "--to")
# Options that name what is to be made.
MADE = ("--export", "--out", "--to")


class Command(TyperCommand):
    """A command that takes `--json` with and without a file, and no addresses for files of this machine."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words after the command's name."""
        if any("--json" in param.opts and not getattr(param, "is_flag", False) for param in self.params):
            pairs = zip(args, [*args[1:], "-"], strict=True)
            args = [f"{word}={STDOUT}" if word == "--json" and after.startswith("-") else word for word, after in pairs]
        rest = list(super().parse_args(ctx, args))
        for param in self.get_params(ctx):
            value = str(ctx.params.get(param.name or "") or "")
            if param.opts[0] in FILES and re.match(r"[a-z0-9]+:/", value):  # a path has lost the second slash
                raise UserError(f"{value}: this is an address, and `{param.opts[0]}` names files of this machine.")
            if param.opts[0] in MADE and value and not Path(value).name:  # "." has no name to be written under
                raise UserError(f"`{param.opts[0]} {value}`: this folder is there already; name one to be made.")
        return rest


class App(typer.Typer):
    """A typer application whose commands all take -h and --quiet and say after Ctrl-C what is kept."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            no_args_is_help=True,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
            context_settings={"help_option_names": ["-h", "--help"]},
            **settings,
        )

    def command(  # type: ignore[override]
        self, name: str | None = None, *, kept: str = "nothing is half-written: give the same command again"
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Register a command; `kept` is what Ctrl-C leaves, and how to go on, in words."""
        register = super().command

        def take(function: Callable[..., None]) -> Callable[..., None]:
            summary = first_sentence(function.__doc__ or "")
            register(name, cls=Command, short_help=summary)(_with_quiet(function, name or function.__name__, kept))
            return function

        return take


def first_sentence(text: str) -> str:
    """Return the first sentence of a command's help, which the list of commands has."""
    return " ".join(text.split("\n\n")[0].split()).split(". ")[0].rstrip(".") + "."


def _with_quiet(function: Callable[..., None], name: str, kept: str) -> Callable[..., None]:
    @wraps(function)
    def run(*arguments: Any, quiet: bool = False, **options: Any) -> None:
        is_new = quiet and QUIET not in os.environ
        if quiet:
            os.environ[QUIET] = "1"  # also for programs that are started
        try:
            with own_words_only(name):
                function(*arguments, **options)
        except KeyboardInterrupt:
            print(f"interrupted; {kept}.", file=sys.stderr)
            raise typer.Exit(130) from None
        finally:
            if is_new:
                del os.environ[QUIET]

    signature = inspect.signature(function, eval_str=True)
    more = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), more])  # type: ignore[attr-defined]
    run.__annotations__ = {**function.__annotations__, "quiet": Quiet}
    return run


def run_app(app: Callable[..., Any]) -> int:
    """Run a command line: what a user can put right is one red sentence on stderr, without a traceback.

    Returns 0, 1 for what was wrong in files or on the machine, 2 for an impossible command line, 130 after Ctrl-C.
    SWEETRL_DEBUG=1 shows the traceback.
    """
    any_letters()
    try:
        code = app(standalone_mode=False, prog_name="sweetrl")
        return code if isinstance(code, int) else 0
    except typer.Abort:
        return 130
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(str(error))
            return 2
        return fail(usage_sentence(error), error, 2)
    except Exception as error:
        if (sentence := sentence_of(error)) is None:
            raise
        return fail(sentence, error)


def fail(sentence: str, error: BaseException, code: int = 1) -> int:
    """Print the sentence and return the exit status."""
    if os.environ.get("SWEETRL_DEBUG", "") not in ("", "0"):
        raise error
    from sweetrl.console.screen import Screen

    Screen(stderr=True, soft_wrap=True).print("error:", sentence, style="red")
    return code


def usage_sentence(error: Any) -> str:
    """Return what is wrong with a command line, where, and what to do, in one line."""
    command = error.ctx.command_path if error.ctx is not None else "sweetrl"
    message = " ".join(error.format_message().split()).replace("Value error, ", "")
    end = "" if message.endswith((".", "?")) else "."
    return f"{command}: {message}{end} `{command} -h` lists what it takes."
