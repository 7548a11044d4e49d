"""The commands of `sweetrl` that work on files (tasks, answers, dialogues, programs, pages) without a pipeline."""

from __future__ import annotations

import json
from contextlib import nullcontext, redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from sweetrl.cli import options as opt
from sweetrl.console.logs import quiet
from sweetrl.console.printing import in_words, note, print_facts, print_json, print_table
from sweetrl.errors import UserError
from sweetrl.paths import VALIDATION_TASKS
from sweetrl.seeds import MOST

if TYPE_CHECKING:
    from sweetrl.config.settings import Settings

PARAMETERS = Path("params.yaml")


def score(
    tasks: opt.Tasks,
    answers: Annotated[Path, Option(help='Rows {"index": i, "answer": "..."}, or an official trajectory file.')],
    semantics: Annotated[
        Literal["fixed", "official", "official-noblacklist"] | None,
        Option(help="By whose rules an answer passes a test; default: as params.yaml says."),
    ] = None,
    report: opt.JsonFile = None,
    changes: opt.Set = None,
) -> None:
    """Score answers against the hidden unit tests of task files, in the sandbox. The JSON has every verdict."""
    from sweetrl.cli.score import score_file
    from sweetrl.stages.parameters import with_values

    file = None if report == opt.STDOUT else report
    reward = with_values(settings_here(None, changes), {"reward.semantics": semantics}).reward
    scored = score_file(tasks, answers, reward, file)
    print_facts("score", facts(scored["summary"]), scored if report == opt.STDOUT else None)
    if file is not None:
        note(f"every verdict: {file}")


def collect(
    tasks: opt.Tasks,
    out: Annotated[Path, Option(help="What to write: an official trajectory file (.jsonl) or a folder of shards.")],
    attempts: Annotated[int, Option(help="Attempts at each task.", min=1)] = 1,
    engine: opt.EngineName = None,
    url: opt.Url = None,
    model: opt.Model = None,
    adapter: opt.Adapter = None,
    user: opt.UserName = None,
    user_url: opt.UserUrl = None,
    user_model: opt.UserModel = None,
    recording: opt.RecordingFile = None,
    limit: opt.Limit = None,
    concurrency: opt.Concurrency = None,
    seed: opt.Seed = None,
    suite: opt.Suite = None,
    changes: opt.Set = None,
    as_json: opt.Json = False,
) -> None:
    """Let any agent attempt the tasks of a file, score its answers, and write the dialogues."""
    from sweetrl.stages.standalone import collect_standalone, with_choices

    choices = engine, url, model, user, user_url, user_model, recording, concurrency, seed
    settings = with_choices(settings_here(suite, changes), *choices)
    summary = collect_standalone(settings, tasks, out, attempts, limit, adapter)
    print_facts("collect", facts(summary), summary if as_json else None)


def import_(
    files: Annotated[
        list[Path],
        Argument(help="Official trajectory files, or logs of chat messages (.jsonl, .parquet).", metavar="FILE..."),
    ],
    out: Annotated[Path, Option(help="What to write: a folder of shards.")],
    skip_bad: Annotated[int | None, Option(help="Bad rows that may be left out (OUT/bad-rows.jsonl).", min=0)] = None,
    keep_rewards: Annotated[
        bool | None, Option("--keep-rewards/--score", help="Take official files' own rewards; logs always keep theirs.")
    ] = None,
    held_out: Annotated[list[Path] | None, Option(help="Leave out dialogues about a file's tasks; any number.")] = None,
    suite: opt.Suite = None,
    changes: opt.Set = None,
    as_json: opt.Json = False,
) -> None:
    """Put dialogues that others have made into shards to train on, and say for which methods they are enough.

    What is not given is as params.yaml says (`collect.skip_bad`, `collect.keep_rewards`).
    """
    from sweetrl.stages.import_dialogues import import_standalone
    from sweetrl.stages.parameters import with_values

    given = {"collect.skip_bad": skip_bad, "collect.keep_rewards": keep_rewards}
    settings = with_values(settings_here(suite, changes), given)
    summary = import_standalone(settings, files, out, held_out or ())
    print_facts("import", facts(summary), summary if as_json else None)


def evaluate(
    tasks: opt.Tasks = VALIDATION_TASKS,
    out: Annotated[Path | None, Option(help="Write the dialogues: a .jsonl file (official) or a folder.")] = None,
    report: opt.JsonFile = None,
    temperature: Annotated[list[float] | None, Option(help="The agent's temperature (0: greedy); any number.")] = None,
    top_p: Annotated[float | None, Option(help="The agent's nucleus sampling.", min=0.0, max=1.0)] = None,
    engine: opt.EngineName = None,
    url: opt.Url = None,
    model: opt.Model = None,
    adapter: opt.Adapter = None,
    user: opt.UserName = None,
    user_url: opt.UserUrl = None,
    user_model: opt.UserModel = None,
    recording: opt.RecordingFile = None,
    limit: opt.Limit = None,
    concurrency: opt.Concurrency = None,
    seed: opt.Seed = None,
    suite: opt.Suite = None,
    changes: opt.Set = None,
) -> None:
    """Measure any agent on the tasks of a file, one attempt each: success and mean reward, with intervals.

    What is not given is as params.yaml says. Several temperatures are compared.
    """
    from sweetrl.rollout.scored import THOUGHTS
    from sweetrl.stages.standalone import evaluate_standalone, with_choices

    choices = engine, url, model, user, user_url, user_model, recording, concurrency, seed, top_p
    settings = with_choices(settings_here(suite, changes), *choices)
    as_json = report == opt.STDOUT
    result = evaluate_standalone(settings, tasks, out, limit, adapter, None if as_json else report, temperature or ())
    if as_json or "temperatures" not in result:
        rest = {name: value for name, value in result.items() if name not in ("success", "reward", "intervals")}
        first = result.get("intervals", {})  # the numbers to read first
        print_facts("evaluate", facts({**first, **rest}), result if as_json else None)
        return
    measured = [{**row, **row["intervals"]} for row in result["temperatures"]]
    columns = ["temperature", "success", "reward", "turns", "questions", "success_per_question"]
    columns += [THOUGHTS] * any(THOUGHTS in row for row in measured)
    rows = [[in_words(row.get(name)) for name in columns] for row in measured]
    title = f"evaluate {result['agent']} on {result['tasks']} tasks (best: temperature {result['temperature']:g})"
    print_table(title, [name.replace("_", " ") for name in columns], rows)


def tasks(
    split: Annotated[Literal["train", "validation", "test"], Option(help="Which of the tasks.")],
    out: Annotated[Path, Option(help="What to write: an official task file (.jsonl) or a table (.parquet).")],
    count: Annotated[int | None, Option(help="How many, from the first; default: as in params.yaml.", min=1)] = None,
    seed: Annotated[
        int | None, Option(help="Seed of the tasks; default: that of params.yaml.", min=0, max=MOST)
    ] = None,
    difficulty: Annotated[int | None, Option(help="Hidden details in a task (params.yaml).", min=1, max=6)] = None,
    suite: opt.Suite = None,
    changes: opt.Set = None,
    as_json: opt.Json = False,
) -> None:
    """Write generated tasks of the domain: those that the stage `tasks` makes from the same seed."""
    from sweetrl.colbench.files import task_row
    from sweetrl.colbench.find import load_domain
    from sweetrl.colbench.store import write_task_table
    from sweetrl.io import write_text
    from sweetrl.stages.parameters import with_values
    from sweetrl.stages.standalone import check_free
    from sweetrl.stages.tasks import own_tasks

    check_free(out)
    settings = with_values(settings_here(suite, changes), {"seed": seed, "tasks.difficulty": difficulty})
    sizes, domain = settings.tasks, load_domain(settings)
    number = count or {"train": sizes.train, "validation": sizes.validation, "test": sizes.test}[split]
    if split == "train" and number > sizes.train:  # validation tasks are behind
        raise UserError(f"`tasks.train` is {sizes.train}; raise it in params.yaml, or take fewer than {number}.")
    first = {"train": 0, "validation": sizes.train, "test": sizes.test_first}[split]
    members = own_tasks(domain, "test" if split == "test" else "train", first + number)[first:]
    if out.suffix == ".parquet":
        write_task_table(out, members)
    else:
        write_text(out, "".join(json.dumps(task_row(task), ensure_ascii=False) + "\n" for task in members))
    made = {"domain": domain.spec, "split": split, "tasks": len(members), "seed": settings.seed}
    made |= {"difficulty": settings.tasks.difficulty, "written": out}
    print_facts("tasks", [(name, str(value)) for name, value in made.items()], made if as_json else None)


def convert(
    file: Annotated[Path, Argument(help="A file in llama.cpp's format, GGUF.")],
    to: Annotated[Path, Option(help="The folder to make, for `model.base` of params.yaml.")],
    dtype: Annotated[Literal["bfloat16", "float16", "float32"], Option(help="Precision of the weights.")] = "bfloat16",
    as_json: opt.Json = False,
) -> None:
    """Make a model's folder from a GGUF file: weights in safetensors, tokenizer, chat template, tokens that stop."""
    from sweetrl.models import gguf
    from sweetrl.stages.standalone import check_free

    check_free(to)
    with redirect_stderr(StringIO()) if quiet() else nullcontext():  # bars of progress
        made = gguf.convert(file, to, dtype)
    print_facts("convert", facts(made), made if as_json else None)
    note(f"next: `model.base: {to}` in params.yaml, and `sweetrl doctor`; docs/real-models.md says more")


def sandbox_run(
    file: Annotated[Path, Argument(help="A file of Python to execute.")],
    call: Annotated[list[str], Option(help='An expression to evaluate on it, as in --call "f(1)"; any number.')],
    wall: Annotated[float, Option(help="Seconds for everything together.", min=0.01)] = 2.0,
    memory: Annotated[int, Option(help="Memory limit in MiB.", min=16)] = 512,
    unsafe: Annotated[bool, Option("--unsafe", help="Go on where the machine offers no isolation.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Execute FILE in the sandbox, afresh for each call, and print what each call came to."""
    from sweetrl.console.screen import Screen
    from sweetrl.sandbox.limits import Limits
    from sweetrl.sandbox.run import run_file

    limits = Limits(wall_seconds=wall, call_seconds=wall, memory_mib=memory)
    result: dict[str, Any] = run_file(file, call, limits, unsafe)
    if as_json:
        print_json(result)
        return
    console = Screen()
    for row in result["calls"]:
        passed = row["kind"] == "value"
        console.print(f"{row['call']} ->", style="bold", end=" ")
        text = row["value"] if passed else f"{row['kind']}: {row['detail']}"
        console.print(text, style="green" if passed else "red")
    console.print(f"isolation {result['isolation']}, {result['seconds']:.3f} s", style="dim")


def browser_render(
    file: Annotated[Path, Argument(help="A file of HTML.")],
    out: Annotated[Path, Option(help="Write the picture here (PNG).")],
    elements: opt.JsonFile = None,
    changes: opt.Set = None,
) -> None:
    """Render FILE as an answer of Frontend Design is rendered, and say how it went. The JSON has every element."""
    from sweetrl.browser.run import render_file
    from sweetrl.io import read_json

    settings = settings_here(None, changes).browser
    with TemporaryDirectory() as name:
        as_json = elements == opt.STDOUT
        written = Path(name) / "elements.json" if as_json else elements
        facts_of_page = render_file(file, out, written, settings)
        print_facts("render", list(facts_of_page.items()), read_json(written) if as_json and written else None)


def facts(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the values of a summary as rows to print."""
    return [(name.replace("_", " "), in_words(value)) for name, value in values.items()]


def settings_here(suite: str | None = None, changes: list[str] | None = None) -> Settings:
    """The settings of the project we stand in (outside of one, the defaults), with what the command line changes."""
    from sweetrl.config.overrides import parse_changes, with_changes
    from sweetrl.config.settings import Settings, load_settings, parse_settings
    from sweetrl.config.yaml_files import read_yaml

    settings = load_settings(PARAMETERS) if PARAMETERS.exists() else Settings()
    if changes:
        tree = read_yaml(PARAMETERS) if PARAMETERS.exists() else None
        settings = parse_settings(with_changes(tree or {}, parse_changes(changes)), "--set")
    return settings if suite is None else settings.model_copy(update={"suite": suite})
