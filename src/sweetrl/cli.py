"""The command line `sweetrl`: thin, and each command imports what it needs when it runs, so `--help` is quick."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sweetrl import __version__
from sweetrl.errors import EXTRAS, UserError, missing_extra
from sweetrl.options import (
    Adapter,
    Agent,
    Concurrency,
    EngineName,
    Limit,
    Model,
    RecordingFile,
    Seed,
    Semantics,
    Splits,
    Suite,
    Tasks,
    Url,
    UserModel,
    UserName,
    UserUrl,
)
from sweetrl.paths import VALIDATION_TASKS
from sweetrl.printing import in_words, print_facts, print_table

if TYPE_CHECKING:
    from sweetrl.screen import Screen
    from sweetrl.settings import Settings

PARAMETERS = Path("params.yaml")
PIPELINE = Path("dvc.yaml")
FLOWS = Path("flows")

# Nothing phones home and nothing waits for a hub, however the command was started; values that are set already win.
QUIET = {
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "TOKENIZERS_PARALLELISM": "false",
}

app = typer.Typer(
    name="sweetrl",
    help="Train language-model agents that work with a user over several turns: SWEET-RL on ColBench.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
sandbox_app = typer.Typer(help="Run Python that nobody has read.", no_args_is_help=True)
app.add_typer(sandbox_app, name="sandbox")
browser_app = typer.Typer(help="Render pages that nobody has read.", no_args_is_help=True)
app.add_typer(browser_app, name="browser")


@app.command()
def run() -> None:
    """Run the whole pipeline: tasks, training, evaluation, registration. Unchanged stages are skipped."""
    from importlib.util import find_spec

    for name in EXTRAS["pipeline"]:  # said here: the flow's own imports would end in a traceback
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    if not all(path.exists() for path in (PIPELINE, PARAMETERS, FLOWS)):
        raise UserError(
            f"{Path.cwd()}: there is no {PIPELINE} with {PARAMETERS} and {FLOWS}/ here; run from the project's root."
        )
    # The flow takes this process over: the package stays free of Prefect, and Ctrl-C reaches the flow alone.
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "flows.run"])


@app.command()
def score(
    tasks: Annotated[Path, typer.Option(help="Official task file (JSONL).")],
    answers: Annotated[
        Path, typer.Option(help='Answers, {"index": i, "answer": "..."} a line, or an official trajectory file.')
    ],
    semantics: Annotated[Semantics, typer.Option(help="By whose rules an answer passes a test.")] = Semantics.fixed,
    out: Annotated[Path | None, typer.Option("--json", help="Write summary and per-test verdicts here.")] = None,
) -> None:
    """Score answers against the hidden unit tests of official task files, in the sandbox."""
    from sweetrl.domains.backend.score_file import score_file

    summary = score_file(tasks, answers, semantics.value, out, _settings().reward)["summary"]
    print_facts("score", [(name.replace("_", " "), in_words(value)) for name, value in summary.items()])
    if out is not None:
        _console().print(f"every verdict: {out}")


@app.command()
def collect(
    tasks: Tasks,
    out: Annotated[
        Path, typer.Option(help="What to write: an official trajectory file (.jsonl) or a folder of shards.")
    ],
    attempts: Annotated[int, typer.Option(help="Attempts at each task.", min=1)] = 1,
    engine: EngineName = None,
    url: Url = None,
    model: Model = None,
    adapter: Adapter = None,
    user: UserName = None,
    user_url: UserUrl = None,
    user_model: UserModel = None,
    recording: RecordingFile = None,
    limit: Limit = None,
    concurrency: Concurrency = None,
    seed: Seed = None,
    suite: Suite = None,
) -> None:
    """Let any agent attempt the tasks of a file, score its answers, and write the dialogues."""
    from sweetrl.running.standalone import Choices, collect_standalone, with_choices

    choices = Choices(engine, url, model, user, user_url, user_model, recording, concurrency, seed)
    summary = collect_standalone(with_choices(_settings(suite), choices), tasks, out, attempts, limit, adapter)
    print_facts("collect", [(name.replace("_", " "), in_words(value)) for name, value in summary.items()])


@app.command("import")
def import_(
    files: Annotated[
        list[Path],
        typer.Argument(help="Official trajectory files, or logs of chat messages (.jsonl).", metavar="FILE..."),
    ],
    out: Annotated[Path, typer.Option(help="What to write: a folder of shards.")],
    skip_bad: Annotated[
        int, typer.Option(help="So many bad rows may be left out, into OUT/bad-rows.jsonl.", min=0)
    ] = 0,
    keep_rewards: Annotated[
        bool, typer.Option("--keep-rewards", help="Take official files' own rewards; logs always keep theirs.")
    ] = False,
    held_out: Annotated[
        list[Path] | None, typer.Option(help="Leave out dialogues about the tasks of this file; any number.")
    ] = None,
    suite: Suite = None,
) -> None:
    """Put dialogues that others have made into shards to train on, and say for which methods they are enough."""
    from sweetrl.running.importing import import_standalone

    settings = _settings(suite)
    changed = settings.collect.model_copy(update={"skip_bad": skip_bad, "keep_rewards": keep_rewards})
    found = import_standalone(settings.model_copy(update={"collect": changed}), files, out, held_out or ())
    print_facts("import", [(name.replace("_", " "), in_words(value)) for name, value in found.items()])


@app.command()
def evaluate(
    tasks: Tasks = VALIDATION_TASKS,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "--save", help="Write the dialogues here, too: a .jsonl file (official) or a folder of shards."
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
    temperature: Annotated[
        list[float] | None, typer.Option(help="The agent's temperature (0 is greedy); any number, a row for each.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="The agent's nucleus sampling.", min=0.0, max=1.0)] = None,
    engine: EngineName = None,
    url: Url = None,
    model: Model = None,
    adapter: Adapter = None,
    user: UserName = None,
    user_url: UserUrl = None,
    user_model: UserModel = None,
    recording: RecordingFile = None,
    limit: Limit = None,
    concurrency: Concurrency = None,
    seed: Seed = None,
    suite: Suite = None,
) -> None:
    """Measure any agent on the tasks of a file, one attempt each: success and mean reward, with intervals.

    What is not given is as params.yaml says. Several temperatures are compared.
    """
    from sweetrl.running.standalone import Choices, evaluate_standalone, with_choices

    choices = Choices(engine, url, model, user, user_url, user_model, recording, concurrency, seed, top_p)
    settings = with_choices(_settings(suite), choices)
    found = evaluate_standalone(settings, tasks, out, limit, adapter, report, temperature or ())
    if "temperatures" not in found:
        rest = {name: value for name, value in found.items() if name not in ("success", "reward", "intervals")}
        named = {**found["intervals"], **rest}  # what one looks for first
        print_facts("evaluate", [(name.replace("_", " "), in_words(value)) for name, value in named.items()])
        return
    columns = ("temperature", "success", "reward", "turns", "questions", "success_per_question")
    rows = [[in_words({**one, **one["intervals"]}[name]) for name in columns] for one in found["temperatures"]]
    title = f"evaluate {found['agent']} on {found['tasks']} tasks (best: temperature {found['temperature']:g})"
    print_table(title, [name.replace("_", " ") for name in columns], rows)


@app.command()
def tasks(
    split: Annotated[Splits, typer.Option(help="Which of the tasks.")],
    out: Annotated[Path, typer.Option(help="What to write: an official task file (.jsonl) or a table (.parquet).")],
    count: Annotated[
        int | None, typer.Option(help="How many, from the first; default: as many as params.yaml says.", min=1)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the tasks; default: that of params.yaml.")] = None,
    difficulty: Annotated[
        int | None, typer.Option(help="Hidden details in a task; default: as params.yaml says.", min=1, max=6)
    ] = None,
    suite: Suite = None,
) -> None:
    """Write generated tasks of the domain: those that the stage `tasks` makes from the same seed."""
    from sweetrl.plugins import load_domain
    from sweetrl.running.standalone import check_free
    from sweetrl.running.task_files import with_count, write_task_file
    from sweetrl.stages.tasks import split_tasks

    check_free(out)
    settings = with_count(_settings(suite), split.value, count, seed, difficulty)
    domain = load_domain(settings)
    found = split_tasks(domain)[split.value][:count]
    write_task_file(out, found)
    made = {"domain": domain.spec, "split": split, "tasks": len(found), "seed": settings.seed}
    facts = {**made, "difficulty": settings.tasks.difficulty, "written": out}
    print_facts("tasks", [(name, str(value)) for name, value in facts.items()])


@sandbox_app.command("run")
def sandbox_run(
    file: Annotated[Path, typer.Argument(help="A file of Python to execute.")],
    call: Annotated[list[str], typer.Option(help='An expression to evaluate on it, as in --call "f(1)"; any number.')],
    wall: Annotated[float, typer.Option(help="Seconds for everything together.", min=0.01)] = 2.0,
    memory: Annotated[int, typer.Option(help="Memory limit in MiB.", min=16)] = 512,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Go on where the machine offers no isolation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Execute FILE in the sandbox, afresh for each call, and print what each call came to."""
    import json

    from sweetrl.sandbox.limits import Limits
    from sweetrl.sandbox.run import run_file

    limits = Limits(wall_seconds=wall, call_seconds=wall, memory_mib=memory)
    result: dict[str, Any] = run_file(file, call, limits, unsafe)
    if as_json:
        print(json.dumps(result, indent=2, ensure_ascii=False))
        return
    console = _console()
    for row in result["calls"]:
        passed = row["kind"] == "value"
        console.print(f"{row['call']} ->", style="bold", end=" ")
        text = row["value"] if passed else f"{row['kind']}: {row['detail']}"
        console.print(text, style="green" if passed else "red")
    console.print(f"isolation {result['isolation']}, {result['seconds']:.3f} s", style="dim")


@browser_app.command("render")
def browser_render(
    file: Annotated[Path, typer.Argument(help="A file of HTML.")],
    out: Annotated[Path, typer.Option(help="Write the picture here (PNG).")],
    elements: Annotated[Path | None, typer.Option("--json", help="Write what is to be seen here (JSON).")] = None,
) -> None:
    """Render FILE as an answer of Frontend Design is rendered, and say how it went."""
    from sweetrl.browser.run import render_file

    print_facts("render", list(render_file(file, out, elements, _settings().browser).items()))


@app.command()
def play(
    task: Annotated[str, typer.Argument(help="A task's id, or its number in the file.")] = "0",
    tasks: Annotated[
        Path | None, typer.Option(help="Task table (.parquet) or official task file (.jsonl); default: the test tasks.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="Who you talk with: policy, base, an adapter's folder, or a registered MODEL@ALIAS.")
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the agent's sampling.")] = 0,
    blind: Annotated[bool, typer.Option("--blind", help="Hide the reference from you, too.")] = False,
    suite: Suite = None,
) -> None:
    """Talk with the trained agent: you play the user of a task, and what it hands over is scored."""
    from sweetrl.terminal import play_task

    play_task(_settings(suite), _console(), task, tasks, policy, seed, blind)


@app.command()
def show(
    task: Annotated[str | None, typer.Argument(help="A task's id or its number; without one, what there is.")] = None,
    attempt: Annotated[int, typer.Option(help="Which attempt at the task (from 0).", min=0)] = 0,
    source: Annotated[
        Path, typer.Option("--from", help="Folder of trajectory shards, or an official trajectory file.")
    ] = Path("data/trajectories"),
    policy: Annotated[str | None, typer.Option(help="Only this policy's (part of its name).")] = None,
    privileged: Annotated[bool, typer.Option("--privileged", help="Also what the agent never sees.")] = False,
    limit: Annotated[int, typer.Option(help="Rows of the list.", min=1)] = 30,
    suite: Suite = None,
) -> None:
    """Show one trajectory, readable: who said what, tokens for each turn, and the verdict of every hidden test."""
    from sweetrl.plugins import load_domain
    from sweetrl.show import list_trajectories, show_trajectory

    domain = load_domain(_settings(suite))
    if task is None:
        list_trajectories(_console(), source, domain, policy, limit)
    else:
        show_trajectory(_console(), source, domain, task, attempt, policy, privileged)


@app.command()
def lineage(
    model: Annotated[
        str | None,
        typer.Argument(help="MODEL, MODEL@ALIAS or MODEL/VERSION; default: the champion.", metavar="MODEL[@ALIAS]"),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Print every data hash, stage run, parameter and result.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Print the chain behind a registered version: run, commit, data, parameters, results, cost."""
    from dataclasses import asdict
    from json import dumps

    from sweetrl.tracking.lineage import lineage as find

    settings = _settings().tracking
    found = find(model or settings.model, settings)
    if as_json:
        print(dumps(asdict(found), indent=2, ensure_ascii=False, default=str))
    else:
        rows = list(found.rows() if everything else found.summary())
        more = [] if everything else [("more", f"sweetrl lineage {found.model}/{found.version} --all")]
        print_facts(f"lineage of {found.model} version {found.version}", [*rows, *more])


@app.command()
def export(
    model: Agent,
    to: Annotated[Path, typer.Option(help="What to write: a folder that is not there yet, or empty.")],
    merge: Annotated[bool, typer.Option("--merge", help="Merge base and adapter into one model.")] = False,
    push: Annotated[
        str | None, typer.Option(help="Upload it to the Hugging Face Hub, too, as OWNER/NAME (private if new).")
    ] = None,
) -> None:
    """Write a trained agent as a Hugging Face folder with a model card: the adapter, or the merged model."""
    if push is not None:
        os.environ["HF_HUB_OFFLINE"] = "0"  # asked for the Hub by name; read when its client is imported
    from sweetrl.handover import export as handover

    handed = handover.export(model, _settings(), to, merge)
    print_facts("export", [("agent", handed.title), ("written", str(to)), *handover.contents(to)])
    if push is not None:
        print_facts("push", [("uploaded", handover.push(to, push, handed.title))])


@app.command()
def serve(
    model: Agent,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.", min=0, max=65535)] = 8000,
    poll: Annotated[float, typer.Option(help="Seconds between two looks at the alias.", min=0.1)] = 10.0,
) -> None:
    """Serve a trained agent behind an OpenAI-compatible endpoint; when its alias moves, the new version takes over."""
    from sweetrl.handover.endpoint import serve as run_endpoint

    run_endpoint(model, _settings(), host, port, poll)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this machine: Python, packages, torch, isolation, browser, data, services; say what to do."""
    from sweetrl.doctor import examine, report

    checks = examine()
    report(checks, _console(), as_json)
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


@app.command()
def version() -> None:
    """Print the version."""
    print(f"sweetrl {__version__}")


def main() -> None:
    """Run the command line: what a user can put right is one red sentence on stderr and status 1, without a traceback.

    SWEETRL_DEBUG=1 shows the traceback.
    """
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    try:
        app()
    except UserError as error:
        _fail(str(error), error)
    except ImportError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        _fail(str(missing), error)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EISDIR):
            raise
        where = f"{error.filename}: " if error.filename else ""
        what = (error.strerror or "this cannot be read or written").lower()
        _fail(f"{where}{what}; fix that and run the same command again.", error)


def _fail(sentence: str, error: BaseException) -> None:
    if os.environ.get("SWEETRL_DEBUG", "") not in ("", "0"):
        raise error
    from sweetrl.screen import Screen

    Screen(stderr=True, soft_wrap=True).print("error:", sentence, style="red")
    sys.exit(1)


def _console() -> Screen:
    from sweetrl.screen import Screen

    return Screen()


def _settings(suite: str | None = None) -> Settings:
    """The settings of the project we stand in (outside of one, the defaults), for another domain if one is named."""
    from sweetrl.settings import Settings, load_settings

    found = load_settings(PARAMETERS) if PARAMETERS.exists() else Settings()
    return found if suite is None else found.model_copy(update={"suite": suite})


if __name__ == "__main__":
    main()
