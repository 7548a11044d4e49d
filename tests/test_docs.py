"""What the docs paste, checked in seconds: blocks, settings, options of commands, and the Python that is quick.

`tests/end_to_end/test_docs_commands.py` runs every block of every page, in order.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweetrl.api.learning import own_settings
from sweetrl.browser.binary import find_browser
from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import parse_settings
from sweetrl.errors import UserError
from sweetrl.methods.base import find_method
from sweetrl.types import Message

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "docs" / "site"))
from blocks import SHELL, Block, blocks, pages  # type: ignore[import-not-found]  # noqa: E402
from notebooks import NOTEBOOK, SCRIPT, notebook  # type: ignore[import-not-found]  # noqa: E402

ELSEWHERE = ("my_package.", "sweetrl.interop.")  # code that only a reader has, or an environment of its own
SHELLS = {"cd", "source", "export", "curl", "printf", "head", "ls", "mkdir", "true"}
OURS = {"make", "python", "sweetrl", "dvc", "git", "mlflow", "prefect"}
OTHERS = {"createdb", "pip", "psql", "vllm", "vf-eval", "inspect", "torchrun"}  # what other environments have


def named(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def of(page: Path, *languages: str) -> list[Block]:
    return [block for block in blocks(page) if block.language in languages]


def python_of(name: str) -> str:
    """The Python of a page, block after block, as a reader would type it."""
    return "\n\n".join(block.text for block in of(REPOSITORY / name, "python") if not block.skipped)


def merged(tree: Any, change: Any) -> Any:
    if isinstance(tree, dict) and isinstance(change, dict):
        return {**tree, **{key: merged(tree.get(key), value) for key, value in change.items()}}
    return change


def test_every_command_is_run_or_a_comment_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    ran, skipped = Counter[str](), Counter[str]()
    for page in pages():
        for block in of(page, *SHELL):  # a fault of a comment or a block raises here
            (skipped if block.skipped else ran)[block.skipped or named(page)] += len(block.commands())
    reasons = "; ".join(f"{count} {reason}" for reason, count in skipped.most_common())
    with capsys.disabled():
        print(f"\ndocs: {ran.total()} commands on {len(ran)} pages are run; not run: {reasons}")
    assert all(len(reason.split()) > 1 or reason == "hours" for reason in skipped), "a reason says what is missing"
    assert ran.total() >= 50, "what can be run is run"


def settings_blocks() -> Iterator[Any]:
    for page in pages():
        for block in of(page, "yaml"):
            yield pytest.param(yaml.safe_load(block.text), id=f"{named(page)}-{block.line}")


@pytest.mark.parametrize("change", settings_blocks())
def test_settings_in_the_guides_are_taken(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    tree = merged(yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8")), change)
    settings = parse_settings(tree, "the guide")
    if not settings.suite.startswith(ELSEWHERE):
        load_domain(settings)
        own_settings(find_method(settings.method), settings)


def commands() -> Iterator[Any]:
    """Each simple command of the docs once, without variables before it and pipes behind it."""
    for page in pages():
        lines = [line for block in of(page, *SHELL) for line in block.commands()]
        for line in dict.fromkeys(lines):
            for number, words in enumerate(simple(line)):
                yield pytest.param(words, id=f"{named(page)}-{line[:40]}-{number}")


def simple(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    tokens = iter([*lexer, ";"])
    for word in tokens:
        if word in ("<", ">", ">>"):
            next(tokens)
        elif set(word) <= set("|&;"):
            if words:
                yield words
            words = []
        elif words or not re.fullmatch(r"[A-Z_]+=.*", word, re.S):
            words.append(word)


@pytest.mark.parametrize("words", commands())
def test_commands_in_the_guides_have_the_options_that_they_use(words: list[str]) -> None:
    from typer.main import get_command

    from sweetrl.cli.main import app

    assert words[0] in SHELLS | OURS | OTHERS, words
    options = {word.partition("=")[0] for word in words if re.fullmatch(r"-[a-z]|--[a-z].*", word)}
    if words[0] == "sweetrl":
        command: Any = get_command(app)
        for word in words[1:]:
            if not hasattr(command, "commands") or word.startswith("-"):
                break
            command = command.commands[word]
        accepted = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert options <= accepted | {"--help", "-h", "--version"}, words
    elif words[0] == "make":
        targets = set(re.findall(r"^([a-z0-9-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.M))
        assert {word for word in words[1:] if "=" not in word} <= targets, words
    elif words[0] == "python" and words[1] != "-c":
        place = words[2].replace(".", "/") if words[1] == "-m" else words[1].removesuffix(".py")
        files = [REPOSITORY / root / f"{place}{end}" for root in ("", "src") for end in (".py", "/__main__.py")]
        source = next(file for file in files if file.exists()).read_text(encoding="utf-8")
        for option in options - {"-m"}:  # argparse, typer
            assert f'"{option}"' in source or re.search(rf"\b{option[2:].replace('-', '_')}: ", source), words


def test_every_figure_of_the_readme_is_a_recorded_one() -> None:
    text = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split()).replace("\u2212", "-")
    folders = (REPOSITORY / "reproduce" / name for name in ("small", "uninformed", "smollm2"))
    measured = [json.loads((folder / "results.json").read_text(encoding="utf-8")) for folder in folders]
    small, untaught, pretrained = measured
    controls, vague = (
        json.loads((REPOSITORY / "reproduce" / name / "results.json").read_text(encoding="utf-8"))
        for name in ("controls", "vague")
    )

    def cell(name: str, of: Any = small, at: str = "0", form: str = "{:.1f} % [{:.1f}, {:.1f}]") -> str:
        if name not in of["rows"]:
            return "-"
        row = of["rows"][name]["at"][at]
        estimate = (row["difference"] if "+" in form else row)["success"]
        return form.format(*(100 * estimate[key] for key in ("value", "low", "high")))

    change = "{:+.1f} [{:+.1f}, {:+.1f}]"
    names = ("zero-shot", "rft", "multi-turn-dpo", "answered-turns", "sweet", "no-privileged")
    cells = {name: [cell(name, each) for each in measured] for name in names}
    paper = {name: small["rows"][name]["paper"][1] for name in names}
    figures = [f"| {' | '.join(cells[name])} | {f'{paper[name]} %' if paper[name] else '-'} |" for name in names]
    for each in measured:
        counts = sorted({len(each["rows"][name]["seeds"]) for name in names if name in each["rows"]})
        figures += [f"({each['tasks_for_each_seed']} tasks, {' or '.join(map(str, counts))} seeds)"]
    figures += [f"{cell('privileged-ratio')}, {cell('privileged-ratio', form=change)} points"]
    figures += [cell("sweet", at="1"), cell("conditioned")]
    figures += [cell(name, untaught, form=change) for name in ("no-privileged", "other-c")]
    figures += [f"{cell('answered-turns', pretrained, form=change)} points"]
    figures += [cell(name, controls, form=change) for name in ("other-c", "no-privileged")]
    figures += [cell(name, controls) for name in ("sweet", "no-rewards")]
    figures += [cell(name, vague) for name in ("sweet", "median-centred", "median-centred-other-c")]
    for figure in figures:
        assert figure in text
        text = text.replace(figure, "")
    versions = {"2503.15478", "3.11", "3.14", "3.1", "2.0"}
    assert set(re.findall(r"\d+\.\d+", text)) == versions


def test_the_python_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(REPOSITORY)
    names: dict[str, Any] = {}
    text = python_of("README.md")
    assert 8 <= len(text.splitlines()) <= 16, "an example of some 15 lines"
    exec(text, names)
    assert "reward" in capsys.readouterr().out and names["critic"]


def test_the_demos_notebook_has_its_cells() -> None:
    """tests/end_to_end/test_first_hour.py runs them."""
    stored = NOTEBOOK.read_text(encoding="utf-8")
    assert stored == notebook(SCRIPT.read_text(encoding="utf-8")), "python docs/site/notebooks.py writes it again"


@pytest.mark.slow
def test_the_python_of_extending_and_the_tutorial_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    names: dict[str, Any] = {}
    exec(python_of("docs/extending.md"), names)
    assert capsys.readouterr().out.splitlines() == ["My word is test0.", "1.0"]
    user = names["Terse"](patience=1)
    assert user.reply(names["task"], [Message("user", "?"), Message("assistant", "?")], 7) == "test0"
    with pytest.raises(names["sweetrl"].UserLeft):
        user.reply(names["task"], [Message("user", "?")] * 3, 7)
    exec(python_of("docs/tutorial.md"), names)
    advantages = re.findall(r"^([+-]\d\.\d{4})  ", capsys.readouterr().out, re.M)
    assert any(map(float, advantages)), "the critic has learnt nothing"
    changed = names["result"].comparison["policies"]
    assert names["result"].comparison["tasks"] == 8 and changed["base"] != changed["trained"]
    dialogue = names["dialogues"][0]
    questions = sum(message.role == "assistant" for message in dialogue.messages) - 1
    assert names["brief"](dialogue.task, dialogue)["questions"] == pytest.approx(-0.02 * questions)


def test_the_python_of_the_sandbox_runs() -> None:
    names: dict[str, Any] = {}
    exec(python_of("docs/sandbox.md"), names)
    calls = names["outcome"].calls
    assert calls[0].tree == 2 and calls[1].kind == "exception"


def test_the_python_of_the_reproduction_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the outcomes that git has."""
    monkeypatch.chdir(REPOSITORY)
    names: dict[str, Any] = {}
    exec(python_of("docs/reproduce.md"), names)
    assert 0 < names["at_0"].groupby("variant")["success"].mean()["sweet"] < 1


def test_the_python_of_the_browser_runs() -> None:
    try:
        find_browser()
    except UserError as error:
        pytest.skip(str(error))
    names: dict[str, Any] = {}
    exec(python_of("docs/browser.md"), names)
    assert names["page"].png and len(names["pages"]) == 2
    assert names["scores"][1] == 0.0 < names["scores"][0]


def test_the_page_of_the_command_line_has_every_exit_code() -> None:
    from tasks.training import Harm, Waiting

    rows = re.findall(r"^\| (\d+) \|", (REPOSITORY / "docs/cli.md").read_text(encoding="utf-8"), re.M)
    assert rows == ["0", "1", "2", str(Harm.status), str(Waiting.status), "130"]


def test_every_page_is_in_the_navigation_once() -> None:
    class Loader(yaml.SafeLoader):
        """mkdocs.yml names Python objects, which need not be loaded here."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)
    config = yaml.load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"), Loader)

    def leaves(tree: Any) -> Iterator[str]:
        if isinstance(tree, str):
            yield tree
        for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
            yield from leaves(child)

    listed = Counter(leaves(config["nav"]))
    inside = {named(page).removeprefix("docs/") for page in (REPOSITORY / "docs").rglob("*.md")}
    single = {name for name in inside if re.match(r"decisions/\d", name)}  # by their own list
    shown = {name for name in listed if not name.startswith("repository/")}
    assert inside - single <= shown, f"put {sorted(inside - single - shown)} into `nav` of mkdocs.yml"
    assert shown <= inside, f"`nav` of mkdocs.yml names pages that are not there: {sorted(shown - inside)}"
    assert set(listed.values()) == {1}
    for name in listed:
        assert not name.startswith("repository/") or (REPOSITORY / name.removeprefix("repository/")).exists(), name


def test_one_version_everywhere() -> None:
    import tomllib

    from sweetrl import __version__

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert __version__ == project["version"] == citation["version"]
    assert citation["license"] == "Apache-2.0" and "2503.15478" in str(citation["references"])


def test_the_walk_of_a_trajectory_names_files_and_functions_that_are_there() -> None:
    page = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
    steps = re.findall(r"`([\w/]+\.py)`(?: \(([^)]*)\))?", page.partition("## A walk")[2].partition("## Packages")[0])
    assert len(steps) > 30
    for path, names in steps:
        root = REPOSITORY if path.startswith("tasks/") else REPOSITORY / "src/sweetrl"
        source = (root / path).read_text(encoding="utf-8")
        for name in re.findall(r"`(?:\w+\.)?(\w+)`", names):
            assert re.search(rf"^\s*(?:def|class) {name}\b", source, re.MULTILINE), f"{path}: {name}"
