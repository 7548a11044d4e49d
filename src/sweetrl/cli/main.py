"""The command line `sweetrl`: thin, and each command imports what it needs when it runs, so `--help` is quick."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from sweetrl import __version__
from sweetrl.cli import files, users
from sweetrl.cli import options as opt
from sweetrl.cli.app import App, run_app
from sweetrl.cli.files import settings_here
from sweetrl.cli.options import Agent, CriticFolder, Engines, Json, Set, Suite
from sweetrl.console.logs import work_alone
from sweetrl.console.printing import print_facts, print_json
from sweetrl.console.progress import wait_briefly
from sweetrl.errors import EXTRAS, UserError

if TYPE_CHECKING:
    from sweetrl.cli.check import Check

PROJECT = (Path("dvc.yaml"), Path("params.yaml"), Path("flows"))  # what a project's root has
KEPT = "finished dialogues are kept: give the same command again to go on"

app = App(name="sweetrl")
sandbox_app = App(help="Run Python that nobody has read.", add_completion=False)
app.add_typer(sandbox_app, name="sandbox")
browser_app = App(help="Render pages that nobody has read.", add_completion=False)
app.add_typer(browser_app, name="browser")
users_app = App(help="Whom agents talk with.", add_completion=False)
app.add_typer(users_app, name="users")


def _say_version(is_given: bool) -> None:
    if is_given:
        print(f"sweetrl {__version__}")
        raise typer.Exit


@app.callback()
def sweetrl(
    version: Annotated[
        bool, Option("--version", help="Print the version and leave.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Train language-model agents that work with a user over several turns: SWEET-RL on ColBench."""


def _start_flow() -> None:
    """Go on as `python -m flows.<command>` with the words of the command line; UserError outside of a project's root.

    The flow takes this process over (Ctrl-C reaches it), so the package stays free of Prefect and DVC.
    """
    from importlib.util import find_spec

    for package in EXTRAS["pipeline"]:  # reported here: the flow's own imports would end in a traceback
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    if not all(path.exists() for path in PROJECT):
        raise UserError(f"{Path.cwd()}: there is no dvc.yaml, params.yaml and flows/; run from the project's root.")
    _, flow, *words = sys.argv
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", f"flows.{flow}", *words])


@app.command(kept="finished stages are kept: run the same command again to go on")
def run(
    dry_run: opt.DryRun = False,
    changes: opt.SetFirst = None,
    profile: opt.Profile = None,
    begin: opt.Begin = None,
    until: opt.Until = None,
    as_json: Json = False,
) -> None:
    """Run the whole pipeline: tasks, training, evaluation, registration. Unchanged stages are skipped."""
    _start_flow()


@app.command()
def ingest(
    source: opt.Source = "",
    kind: opt.Kind = None,
    again: opt.Again = False,
    no_push: opt.NoPush = False,
    no_event: opt.NoEvent = False,
    as_json: Json = False,
) -> None:
    """Make new dialogues or task files the next batch: found, validated, versioned; then retrainings are told."""
    _start_flow()


@app.command()
def restore(version: opt.Version = "", reason: opt.Reason = "", as_json: Json = False) -> None:
    """Make a version the champion again, forward or back, with its data; without one, list who was champion."""
    _start_flow()


@app.command()
def prune(
    keep: opt.Keep = 5,
    days: opt.Days = 14,
    remote: opt.Remote = False,
    dry_run: opt.PruneDryRun = False,
    as_json: Json = False,
) -> None:
    """Remove old versions, runs, branches, data and scratch folders that nothing in use rests on."""
    _start_flow()


@app.command()
def status(prometheus: opt.Prometheus = None, as_json: Json = False) -> None:
    """Say how the project stands: retrainings, champion, winners that wait, servers, disk, and what to do now.

    Exit status: 0 where there is nothing to do, 4 a winner waits, 3 harm, 1 anything else; with --prometheus 0.
    """
    _start_flow()


@app.command()
def gate(
    difference: Annotated[float | None, Option(help="A difference of mean reward (gate.smallest_difference).")] = None,
    tasks: Annotated[int | None, Option(help="How many test tasks; default: as params.yaml says.", min=2)] = None,
    discordance: Annotated[float | None, Option(help="Mean squared difference on a task; default: as seen.")] = None,
    as_json: Json = False,
) -> None:
    """Say which difference the promotion gate can see with the test tasks at hand, and how many a smaller one needs."""
    from sweetrl.tracking.comparisons import plan

    settings = settings_here()
    measuring = settings.evaluate.confidence, tasks or min(settings.evaluate.tasks, settings.tasks.test)
    planned = plan(settings.gate, settings.tracking, *measuring, Path(), difference, discordance)
    print_facts("the next comparison at the gate", list(planned.rows()), asdict(planned) if as_json else None)


app.command()(files.score)
app.command(kept=KEPT)(files.collect)
app.command("import", kept=KEPT)(files.import_)
app.command(kept=KEPT)(files.evaluate)
app.command()(files.tasks)
app.command()(files.convert)
sandbox_app.command("run")(files.sandbox_run)
browser_app.command("render")(files.browser_render)
users_app.command("check")(users.check)


@app.command()
def play(
    task: Annotated[str, Argument(help="A task's id, or its number in the file.")] = "0",
    tasks: Annotated[Path | None, Option(help="A task table or official file; default: the test tasks.")] = None,
    model: Annotated[
        str, Option(help="Who you talk with: policy, base, an adapter's folder, or a registered MODEL@ALIAS.")
    ] = "auto",
    seed: Annotated[int, Option(help="Seed of the agent's sampling.")] = 0,
    blind: Annotated[bool, Option("--blind", help="Hide the reference from you, too.")] = False,
    critic: CriticFolder = None,
    suite: Suite = None,
    changes: Set = None,
    as_json: Json = False,
) -> None:
    """Talk with the trained agent: you play the user of a task, and what it hands over is scored."""
    from sweetrl.cli.show import facts_of, play_task
    from sweetrl.console.screen import Screen

    screen = Screen(stderr=as_json)  # the dialogue is no result: with --json stdout has the JSON alone
    played = play_task(settings_here(suite, changes), screen, task, tasks, model, seed, blind, critic)
    if as_json:
        print_json(facts_of(played, privileged=not blind))


@app.command("show")
def show_(
    task: Annotated[str | None, Argument(help="A task's id or its number; without one, what there is.")] = None,
    attempt: Annotated[int, Option(help="Which attempt at the task (from 0).", min=0)] = 0,
    dialogues: Annotated[Path, Option(help="A folder of dialogues, a shard, or a .jsonl.")] = Path("data/trajectories"),
    model: Annotated[str | None, Option(help="Only this agent's dialogues (part of its name).")] = None,
    privileged: Annotated[bool, Option("--privileged", help="Also what the agent never sees.")] = False,
    critic: CriticFolder = None,
    values: Annotated[bool, Option("--values", help="Run the hidden tests again: what is expected and given.")] = False,
    limit: Annotated[int, Option(help="Rows of the list.", min=1)] = 30,
    suite: Suite = None,
    as_json: Json = False,
) -> None:
    """Show one trajectory, readable: who said what, tokens for each turn, and the verdict of every hidden test."""
    from sweetrl.cli import show
    from sweetrl.colbench.find import load_domain
    from sweetrl.console.screen import Screen

    domain = load_domain(settings_here(suite))
    if task is None and as_json:
        print_json(list(map(show.outline, islice(show.read(dialogues, domain, model), limit))))
    elif task is None:
        show.list_trajectories(Screen(), dialogues, domain, model, limit)
    else:
        dialogue = show.find(dialogues, domain, task, attempt, model)
        more = show.known_more(dialogue, domain, critic, values)
        if as_json:
            print_json(show.facts_of(dialogue, privileged) | more)
        else:
            show.show_trajectory(Screen(), dialogue, domain, privileged, more)


@app.command()
def view(
    what: Annotated[
        str,
        Argument(
            help="A folder (a project, a study, dialogues), a file of dialogues, MODEL@ALIAS, or a run's id.",
            metavar="FOLDER|RUN|MODEL@ALIAS",
        ),
    ] = ".",
    export: Annotated[Path | None, Option(help="Write the page and its data here, to open without a server.")] = None,
    sample: Annotated[
        int, Option(help="With --export: dialogues with test values, pictures and tokens, which take time.", min=0)
    ] = 100,
    host: Annotated[str, Option(help="Address to listen at; another one lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, Option(help="Port to listen at; 0: any that is free.", min=0, max=65535)] = 8010,
    browser: Annotated[bool, Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    suite: Suite = None,
    changes: Set = None,
    as_json: Json = False,
) -> None:
    """Look at every dialogue in a browser: search, compare, candidates with advantages, tests, an overview."""
    from sweetrl.viewer.run import view as run_viewer

    def say(facts: dict[str, object]) -> None:
        print_facts("view", [(name, str(value)) for name, value in facts.items()], facts if as_json else None)

    settings = settings_here(suite, changes)
    run_viewer(what, settings, host=host, port=port, out=export, sample=sample, browser=browser, say=say)


@app.command()
def lineage(
    model: Annotated[
        str | None,
        Argument(help="MODEL, MODEL@ALIAS or MODEL/VERSION; default: the champion.", metavar="MODEL[@ALIAS]"),
    ] = None,
    everything: Annotated[bool, Option("--all", help="Print every hash, stage run, parameter and result.")] = False,
    as_json: Json = False,
) -> None:
    """Print the chain behind a registered version: run, commit, data, parameters, results, cost."""
    from sweetrl.tracking.lineage import lineage as find

    settings = settings_here().tracking
    chain = find(model or settings.model, settings)
    hint = ("more", shlex.join(["sweetrl", "lineage", f"{chain.model}/{chain.version}", "--all"]))
    rows = [*chain.rows()] if everything else [*chain.summary(), hint]
    print_facts(f"lineage of {chain.model} version {chain.version}", rows, asdict(chain) if as_json else None)


@app.command()
def export(
    model: Agent,
    out: Annotated[Path, Option(help="What to write: a folder that is not there yet, or empty.")],
    merge: Annotated[bool, Option("--merge", help="Merge base and adapter into one model.")] = False,
    push: Annotated[str | None, Option(help="Upload it to the Hugging Face Hub, OWNER/NAME (private if new).")] = None,
    as_json: Json = False,
) -> None:
    """Write a trained agent as a Hugging Face folder with a model card: the adapter, or the merged model."""
    if push is not None:
        os.environ["HF_HUB_OFFLINE"] = "0"  # asked for the Hub by name; read when its client is imported
    from sweetrl.serve import export as handover

    handed = handover.export(model, settings_here(), out, merge)
    sizes = [(path.name, f"{path.stat().st_size:,} bytes") for path in sorted(out.iterdir())]
    facts = [("agent", handed.title), ("written", str(out)), *sizes]
    if push is not None:
        facts.append(("uploaded", handover.push(out, push, handed.title)))
    print_facts("export", facts, dict(facts) if as_json else None)


@app.command()
def serve(
    model: Agent,
    host: Annotated[str, Option(help="Address to listen at; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, Option(help="Port to listen at.", min=0, max=65535)] = 8000,
    engine: Annotated[
        Engines | None,
        Option(help="transformers: in this process. vllm: a vLLM server, started here unless there is a --url."),
    ] = None,
    url: Annotated[str, Option(help="A running vLLM server of the agent's base, as in http://HOST:8000/v1.")] = "",
    dialogues: Annotated[
        Path | None, Option(help="Keep dialogues whose clients agree in this folder, for `sweetrl ingest`.")
    ] = None,
) -> None:
    """Serve a trained agent behind an OpenAI-compatible endpoint; when its alias moves, the new version takes over."""
    from sweetrl.serve.alias import sampler
    from sweetrl.serve.endpoint import serve as run_endpoint

    settings = settings_here()
    run_endpoint(model, settings, host, port, sampler(settings.engine, engine, url), dialogues)


@app.command()
def check(as_json: Json = False) -> None:
    """Say in a minute whether a run would come to anything: tasks, references, rewards, pairs, time, room."""
    from sweetrl.cli.doctor import project

    _findings("check", as_json, project)


@app.command()
def doctor(
    gpu: Annotated[str, Option(help="Only plan the memory of this card, as in h100-80; it need not be here.")] = "",
    as_json: Json = False,
) -> None:
    """Check this machine and the project: packages, torch, isolation, browser, services, and what `check` looks at."""
    from sweetrl.cli import doctor as checks

    def memory() -> Iterator[Check]:
        return checks.memory(gpu)

    _findings("doctor", as_json, *([memory] if gpu else []))


def _findings(title: str, as_json: bool, *looks: Callable[[], Iterator[Check]]) -> None:
    from sweetrl.cli.check import report
    from sweetrl.cli.doctor import examine

    checks = examine(*looks)
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        report(checks, title)
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; its exit statuses are those of `run_app`."""
    work_alone()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing waits for a hub
    wait_briefly()
    sys.exit(run_app(app))
