"""Domains, methods, rewards and user simulators by name, and one sentence for every name that is wrong."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sweetrl import Domain, Method, Settings, plugins
from sweetrl.api.calls import chosen
from sweetrl.colbench.find import find_domain, load_domain
from sweetrl.config.settings import load_settings, parse_settings
from sweetrl.errors import UserError
from sweetrl.methods.base import find_method
from sweetrl.paths import ROOT_VARIABLE
from sweetrl.types import Task, Trajectory

REPOSITORY = Path(__file__).resolve().parents[1]
TASK = Task("t-1", "a form", "day: Monday")

# What somebody writes in a project of their own.
MINE = """
import sweetrl
from sweetrl import Domain, Message, Method, Task, Trajectory

class Forms(Domain):
    name = "forms"

class Best(Method):
    needs = frozenset({"tasks"})

class Terse:
    def __init__(self, words="no", times=1):
        self.words = " ".join([words] * times)

    def reply(self, task, messages, seed):
        return self.words

class Named(Terse):
    name = "someone"

def brief(task, dialogue):
    return 1.0 - len(dialogue.messages) / 100

class Brief:
    def __call__(self, task, dialogue):
        return 0.5

class Demanding(Domain):
    def __init__(self, url):
        self.url = url

class Group:
    class Forms(Forms):
        pass

forms = Forms()
number = 3
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with the package `mine`, in whose folder we are; plug-ins are forgotten before and after the test."""
    folder = tmp_path / "project"
    write(folder / "mine" / "__init__.py", "")
    write(folder / "mine" / "things.py", MINE)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = set(sys.modules)
    forget()
    yield folder
    forget()
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def forget() -> None:
    plugins.find.cache_clear()
    plugins._entry_points.cache_clear()
    importlib.invalidate_caches()


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that is installed, with entry points in every group, one of them with the name of a built-in domain."""
    site = tmp_path / "site"
    write(site / "shop" / "__init__.py", MINE)
    write(site / "shop-1.0.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    write(
        site / "shop-1.0.dist-info" / "entry_points.txt",
        """\
        [sweetrl.domains]
        forms = shop:Group.Forms
        backend = shop:Forms
        [sweetrl.methods]
        best = shop:Best
        [sweetrl.rewards]
        brief = shop:brief
        [sweetrl.simulators]
        terse = shop:Terse
        [sweetrl.other]
        stray = shop:Forms
        """,
    )
    monkeypatch.syspath_prepend(str(site))
    forget()
    return site


# Names


@pytest.mark.parametrize("name", plugins.BUILT_IN["domains"])
def test_a_built_in_domain_is_found_by_its_name(name: str) -> None:
    domain = find_domain(name)
    assert isinstance(domain, Domain) and domain.spec == name
    assert domain is not find_domain(name), "each asker has one of its own"
    settings = parse_settings({"suite": name, "agent": {"max_turns": 3}})
    assert load_domain(settings).settings == settings


@pytest.mark.parametrize("name", plugins.BUILT_IN["methods"])
def test_a_built_in_method_is_found_by_its_name(name: str) -> None:
    method = find_method(parse_settings({"method": name}).method)
    assert isinstance(method, Method) and method.name == name


def test_what_an_installed_package_brings_is_found_by_its_name(installed: Path) -> None:
    import shop  # type: ignore[import-not-found]

    domain = find_domain("forms")
    assert type(domain) is shop.Group.Forms and domain.spec == "forms"
    method = find_method("best")
    assert type(method) is shop.Best and method.name == "best"
    assert plugins.find_reward("brief") is shop.brief
    assert plugins.find_simulator("terse", {}).reply(TASK, [], 0) == "no"
    assert plugins.available("domains") == ["backend", "frontend", "forms"]
    assert plugins.available("rewards") == ["brief"]
    assert plugins.available("simulators") == [*plugins.SIMULATORS, "terse"]
    assert plugins.available("methods") == [*plugins.BUILT_IN["methods"], "best"]
    assert type(find_domain("backend")) is not shop.Forms, "no built-in name is taken"


def test_a_path_is_found_in_the_projects_folder(project: Path) -> None:
    domain = find_domain("mine.things:Forms")
    assert (domain.name, domain.spec) == ("forms", "mine.things:Forms")
    assert Path(sys.modules["mine.things"].__file__ or "").is_relative_to(project)
    assert type(find_domain("mine.things:Group.Forms")).__qualname__ == "Group.Forms"
    assert find_domain("mine.things:forms") is sys.modules["mine.things"].forms, "made already"
    assert find_method("mine.things:Best").name == "mine.things:Best"


def test_a_reward_is_a_function_or_a_class_of_functions() -> None:
    dialogue = Trajectory(TASK, 0, ())
    assert plugins.find_reward("mine.things:brief")(TASK, dialogue) == 1.0
    assert plugins.find_reward("mine.things:Brief")(TASK, dialogue) == 0.5


def test_a_simulator_is_made_with_its_options_and_has_a_name() -> None:
    simulator = plugins.find_simulator("mine.things:Terse", {"words": "well", "times": 2})
    assert (simulator.reply(TASK, [], 0), simulator.name) == ("well well", "Terse")
    assert plugins.find_simulator("mine.things:Named", {}).name == "someone"


# Wrong names


def find_user(name: str) -> Any:
    return plugins.find_simulator(name, {})


def find_user_with_options(name: str) -> Any:
    return plugins.find_simulator(name, {"word": "no"})


@pytest.mark.parametrize(
    ("find", "name", "words"),
    [
        (find_domain, "forms", "`suite: forms` is not known; known are backend, frontend, or give the path of"),
        (plugins.find_reward, "brief", "`reward.function: brief` is not known; none is installed, or give the path of"),
        (find_user, "terse", "known are scripted, described, llm, vision, replay, human, or give the path of"),
        (find_domain, "your.things:Forms", "there is no module your.things; run from the project's folder"),
        (find_domain, "mine/things.py:Forms", "there is no module mine/things.py"),
        (find_domain, ":Forms", "is no path"),
        (find_domain, "mine..things:Forms", "is no path"),
        (find_domain, "mine.things:Group.", "is no path"),
        (find_domain, "mine.things:Form", "the module mine.things has no `Form`"),
        (find_domain, "mine.things:Demanding", "the class must be made without arguments"),
        (find_domain, "mine.things:Best", "is no domain"),
        (find_method, "mine.things:Forms", "is no method"),
        (plugins.find_reward, "mine.things:number", "is no function of (task, dialogue)"),
        (find_user, "mine.things:Best", "is no user simulator"),
        (find_user_with_options, "mine.things:Terse", "`simulator.options` do not fit mine.things:Terse"),
    ],
)
def test_a_wrong_name_is_one_sentence(find: Callable[[str], Any], name: str, words: str) -> None:
    with pytest.raises(UserError) as raised:
        find(name)
    message = str(raised.value)
    assert message.startswith("params.yaml: `") and words in message and "\n" not in message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import mine.gone", "No module named 'mine.gone'"),
        ("raise ImportError('no licence')", "no licence"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why(project: Path, text: str, reason: str) -> None:
    write(project / "mine" / "broken.py", text)
    with pytest.raises(UserError) as raised:
        find_domain("mine.broken:Forms")
    assert str(raised.value).startswith(
        f"params.yaml: `suite: mine.broken:Forms`: mine.broken cannot be imported ({reason}"
    )


# Sources


def test_the_projects_own_sources_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ROOT_VARIABLE, raising=False)
    monkeypatch.chdir(REPOSITORY)
    assert check_sources(load_settings()) == {}


def check_sources(settings: Settings, root: Path | None = None) -> dict[str, Path]:
    return plugins.check_sources(chosen(settings), settings.sources, root)


def chosen_with(sources: dict[str, str]) -> Settings:
    return parse_settings({"suite": "mine.things:Forms", "method": "sweet", "sources": sources})


@pytest.mark.parametrize("declared", ["mine/things.py", "mine", "."])
def test_sources_name_the_file_or_a_folder_around_it(project: Path, declared: str) -> None:
    assert check_sources(chosen_with({"suite": declared})) == {"suite": project / declared}, "only plugins are in it"
    assert check_sources(chosen_with({})) == {"suite": project / "mine" / "things.py"}, "nothing is declared"


def test_sources_that_are_elsewhere_are_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = (
        "params.yaml: `suite: mine.things:Forms` is written in mine/things.py, but `sources.suite` is src; set it to "
        "mine/things.py, so that DVC sees its changes."
    )
    (project / "stage").mkdir()
    for folder in (project, project / "stage"):  # a stage may run in a folder of its own
        monkeypatch.chdir(folder)
        monkeypatch.setenv(ROOT_VARIABLE, str(project))
        with pytest.raises(UserError) as raised:
            check_sources(chosen_with({"suite": "src"}))
        assert str(raised.value) == message


def test_a_built_in_domains_source_is_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    settings = parse_settings({"suite": "frontend", "sources": {"suite": "src/sweetrl/backend"}})
    with pytest.raises(UserError, match="is written in src/sweetrl/frontend, but `sources"):
        check_sources(settings, REPOSITORY)
    right = parse_settings({"suite": "frontend", "sources": {"suite": "src/sweetrl/frontend"}})
    assert check_sources(right, REPOSITORY) == {}


def test_what_lies_outside_of_the_project_is_not_looked_for_in_it(installed: Path, project: Path) -> None:
    settings = parse_settings({"reward": {"function": "brief"}, "sources": {"reward": "mine"}})
    assert check_sources(settings, project) == {"reward": installed / "shop" / "__init__.py"}


def test_a_package_in_the_projects_environment_is_no_code_of_the_project(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither DVC nor a worktree has it there."""
    monkeypatch.setattr(plugins.sys, "prefix", str(project / "mine"))
    sources = check_sources(chosen_with({"suite": "src"}), project / "worktree")
    assert sources == {"suite": project / "mine" / "things.py"}


def test_the_source_of_every_kind_is_the_file_that_it_is_written_in(project: Path) -> None:
    groups: dict[str, plugins.Group] = {
        "things:forms": "domains", "things:Best": "methods", "things:brief": "rewards", "things:Terse": "simulators",
        "made:half": "rewards", "made:suite": "domains", "made:user": "simulators",
    }  # fmt: skip
    write(
        project / "mine" / "made.py",
        "import functools\nfrom sweetrl.backend import Backend\nfrom mine.things import brief, Terse\n"
        "half = functools.partial(brief)\nsuite = Backend()\nuser = Terse()\n",
    )
    for name, group in groups.items():
        assert plugins.source_of(group, f"mine.{name}") == project / f"mine/{name.partition(':')[0]}.py"
    assert plugins.is_plugin("domains", "mine.things:Forms")
    assert not plugins.is_plugin("domains", "backend") and not plugins.is_plugin("rewards", "")
    settings = parse_settings({"reward": {"function": "mine.made:half"}, "sources": {"reward": "mine/things.py"}})
    with pytest.raises(UserError, match=r"`reward.function: mine.made:half` is written in mine/made.py, but"):
        check_sources(settings, project)


def test_what_is_not_written_in_python_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"`reward.function: builtins:len` is not written in Python; wrap it"):
        plugins.source_of("rewards", "builtins:len")
