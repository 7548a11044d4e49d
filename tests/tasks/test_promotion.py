"""The gate on a real embedded registry: who becomes champion, and what is compared with what."""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from flows import promote
from sweetrl.config.settings import GateSettings, Settings, load_settings, parse_settings
from sweetrl.errors import UserError
from sweetrl.stages.registration import evaluation_tags, register_policy
from sweetrl.tracking import comparisons, registry
from sweetrl.tracking.comparisons import plan
from sweetrl.tracking.registry import Registration, Registry, model_id
from sweetrl.tracking.store import connect
from tasks import promotion, training
from tasks.pipeline import run_command
from tasks.promotion import GateResult, fresh_test_first, judge, settled, take_over, watch
from tasks.training import Steps
from tests.serve.made import write_rewards
from tests.tasks.fake_project import quiet

TASKS = [f"task-{number:03d}" for number in range(60)]


class Project:
    """A project whose policy is a file of bytes: registering and comparing need no model."""

    def __init__(self, root: Path, settings: Settings):
        self.root, self.settings = root, settings

    def train(self, name: str, rewards: Mapping[str, float | None], base: float = 0.0) -> str:
        """Write a policy with its results and register it; return the version."""
        (self.root / "models/policy").mkdir(parents=True, exist_ok=True)
        (self.root / "models/policy/adapter_config.json").write_text(name)
        write_rewards(self.root, rewards, base)
        return register_policy(self.settings, self.root).version

    def champion(self, name: str, rewards: Mapping[str, float | None]) -> str:
        """Train a version that is compared with the champion and wins."""
        version = self.train(name, rewards)
        decide(self.settings, self.root, version)
        return version


def rewards(rate: float, seed: int) -> dict[str, float | None]:
    generator = random.Random(seed)
    return {task: float(generator.random() < rate) for task in TASKS}


def save(path: Path, scratch: Path, adapter: Path, base: Path | None, config: object) -> None:
    """A version of the adapter alone: the rest of a version takes MLflow a second each time."""
    shutil.copytree(adapter, path / "artifacts/policy")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store: making its tables takes MLflow seconds."""
    root = tmp_path_factory.mktemp("store")
    connect(Settings().tracking, root)
    return root / "mlflow.db"


@pytest.fixture
def project(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_lengths: None) -> Project:
    monkeypatch.chdir(tmp_path)
    shutil.copy(store, tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "data/tasks").mkdir(parents=True)
    (tmp_path / "data/tasks/test.parquet").write_bytes(b"the first test tasks")
    (tmp_path / "params.yaml").write_text("seed: 7\n")
    monkeypatch.setattr(registry, "_save", save)
    return Project(tmp_path, parse_settings({"evaluate": {"resamples": 2000}}))


def failing(*arguments: object, **options: object) -> object:
    """Raises what MLflow's client raises where its server fails."""
    from mlflow.exceptions import MlflowException

    raise MlflowException("API request failed with error code 503")


def decide(settings: Settings, root: Path, version: str, line: Callable[[str], None] = quiet) -> GateResult:
    """Let a version stand against the champion, and move the alias if it wins."""
    result = judge(settings, root, version, line)
    return take_over(settings, root, result) if result.won else result


def test_a_better_challenger_becomes_champion_and_a_lucky_one_does_not(project: Project) -> None:
    first = project.train("first", rewards(0.3, 1))
    result = decide(project.settings, project.root, first)
    assert result.promoted and result.before is None and "there is no champion yet" in result.reason
    registry = Registry(project.settings.tracking, project.root)
    assert registry.aliases() == {"champion": first}
    again = decide(project.settings, project.root, first)
    assert not again.promoted and "is the champion already" in again.reason

    lucky = dict(rewards(0.3, 1)) | {TASKS[0]: 1.0, TASKS[1]: 1.0}
    second = project.train("second", lucky)
    result = decide(project.settings, project.root, second)
    assert not result.promoted and result.champion == first
    assert "not shown to be better" in result.reason
    assert registry.aliases() == {"champion": first, "challenger": second}

    third = project.train("third", rewards(0.9, 2) | {TASKS[5]: None})
    result = decide(project.settings, project.root, third)
    assert result.promoted and result.before == first
    assert result.decision is not None and result.decision.n == len(TASKS) - 1, "a lost dialogue's task is left out"
    assert registry.aliases()["champion"] == third
    assert [entry.version for entry in registry.history()] == [first, third]


def test_who_is_not_better_than_its_base_is_champion_only_where_it_is_accepted(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a version whose mean reward had fallen was promoted as the first, and the run ended with 0."""
    registry = Registry(project.settings.tracking, project.root)
    for name, base, says in (("same", 0.5, "not shown to be better than"), ("harmful", 0.9, "worse than")):
        version = project.train(name, rewards(0.5, 1), base)
        result = decide(project.settings, project.root, version)
        assert result.reason.startswith(f"not promoted: the challenger is {says} its base")
        assert not result.promoted and registry.aliases() == {"challenger": version}
        assert registry.get(version).description.startswith(f"**Gate:** {result.reason}")
    monkeypatch.setattr(promote, "prefect_steps", lambda: Steps(say=quiet))
    monkeypatch.setattr(promote, "announce", lambda *arguments: None)
    state: Any = promote.promote.fn(root=str(project.root))
    assert state.is_failed() and (state.name, state.data.result.reason) == ("Harm", result.reason)
    assert state.message.startswith("the new version is worse than its base: mean reward changed by −")
    accepted = promote.promote.fn(reason="a demo", root=str(project.root))
    assert accepted.promoted and registry.aliases() == {"champion": version}
    assert registry.history()[-1].reason == "accepted: a demo"


def test_a_champion_measured_on_other_tasks_is_measured_again_first(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = project.champion("first", rewards(0.9, 1))
    (project.root / "data/tasks/test.parquet").write_bytes(b"other test tasks")
    second = project.train("second", {f"other-{number}": 1.0 for number in range(40)})
    measured: list[str] = []

    def evaluation(stage: str, command: list[str], folder: Path, *rest: object) -> None:
        measured.append((folder / "models/policy/adapter_config.json").read_text())
        assert (folder / "data/tasks/test.parquet").read_bytes() == b"other test tasks"
        write_rewards(folder, {f"other-{number}": 0.0 for number in range(40)})

    monkeypatch.setattr(promotion, "run_command", evaluation)
    result = decide(project.settings, project.root, second)
    assert measured == ["first"], "the old champion's own adapter was evaluated"
    assert result.promoted and result.champion == second
    registry = Registry(project.settings.tracking, project.root)
    assert set(comparisons.measured(registry, registry.get(first)).rewards.values()) == {0.0}


@pytest.mark.parametrize("stored", [True, False], ids=["stored with it", "a large base"])
def test_a_version_is_measured_again_on_the_base_that_it_was_trained_on(
    project: Project, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """Before, its adapter was put on whatever base lies here now: a champion seemed to be worse than it is."""

    def save_all(path: Path, scratch: Path, adapter: Path, base: Path | None, config: object) -> None:
        save(path, scratch, adapter, base, config)
        if base is not None:
            shutil.copytree(base, path / "artifacts/base")

    def evaluation(stage: str, command: list[str], folder: Path, *rest: object) -> None:
        measured.append((folder / load_settings(folder / "params.yaml").model.base / "config.json").read_text())
        write_rewards(folder, rewards(0.2, 1))

    measured: list[str] = []
    monkeypatch.setattr(registry, "_save", save_all)
    monkeypatch.setattr(promotion, "run_command", evaluation)
    if not stored:
        project.settings = parse_settings({"evaluate": {"resamples": 2000}, "tracking": {"base_mib": 0}})
    base = project.root / "models/base/config.json"
    base.parent.mkdir(parents=True)
    base.write_text("the first base")
    first = project.champion("first", rewards(0.5, 1))
    watch(project.settings, project.root, quiet)
    base.write_text("another base")
    if stored:
        watch(project.settings, project.root, quiet)
    else:
        with pytest.raises(UserError, match=r"^models/base: the adapter's base is another .*SWEETRL_BASE_MODEL"):
            watch(project.settings, project.root, quiet)
        before = project.root / "before"
        before.mkdir()
        (before / "config.json").write_text("the first base")
        monkeypatch.setenv("SWEETRL_BASE_MODEL", str(before))
        watch(project.settings, project.root, quiet)
    assert measured == ["the first base"] * 2
    stored_registry = Registry(project.settings.tracking, project.root)
    assert comparisons.measured(stored_registry, stored_registry.get(first)).rewards == rewards(0.2, 1)


OWN = """
import sweetrl

class Own(sweetrl.Domain):
    prompt = "Say it."

class Best(sweetrl.Method):
    pass

def reward(task, dialogue):
    return 0.0
"""
SEES = """
from sweetrl.config.settings import load_settings
from sweetrl.colbench.find import load_domain
from sweetrl.stages.parameters import own_sources

settings = load_settings()
names = [path.name for path in own_sources(settings).values()]
print(names, load_domain(settings).system_prompt(settings.agent.prompt))
"""


def test_a_champion_is_measured_again_with_the_projects_own_code_and_prompt(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, its own folder had "no module own", so that no second version was ever compared."""
    (project.root / "own.py").write_text(OWN)
    (project.root / "asking.txt").write_text("Ask.")
    values: dict[str, Any] = {"suite": "own:Own", "method": "own:Best", "reward": {"function": "own:reward"}}
    values |= {"agent": {"prompt": "asking.txt"}, "sources": dict.fromkeys(("suite", "method", "reward"), "own.py")}
    (project.root / "params.yaml").write_text(json.dumps(values))
    project.settings = parse_settings(values)
    first = project.champion("first", rewards(0.9, 1))
    stored = Registry(project.settings.tracking, project.root)
    assert stored.download(stored.get(first), "lineage/own.py", project.root / "there").read_text() == OWN
    lines: list[str] = []

    def run(stage: str, command: list[str], folder: Path, env: Mapping[str, str], line: Callable[[str], None]) -> None:
        run_command(stage, [command[0], "-c", SEES], folder, env, lines.append)
        write_rewards(folder, rewards(0.1, 1))

    monkeypatch.setattr(promotion, "run_command", run)
    (project.root / "own.py").write_text(OWN + "# another one")
    decide(project.settings, project.root, project.train("second", rewards(0.9, 2)))
    assert lines == ["['own.py', 'own.py', 'own.py'] Ask."]


def test_a_version_whose_gate_died_stands_before_it_next_time(project: Project) -> None:
    """No stage runs again, and the version is registered already: only its tag says whether the gate has decided."""
    version = project.train("first", rewards(0.5, 1))
    settings = (project.settings, project.root, project.root)
    registration, gate = training._register(*settings, Steps(), None, unchanged=True)
    assert registration is not None and not registration.created and registration.version == version
    assert gate is not None and gate.won and not gate.promoted
    take_over(project.settings, project.root, gate)
    registry = Registry(project.settings.tracking, project.root)
    assert json.loads(registry.get(version).tags["gate"])["promoted"] is True
    assert training._register(*settings, Steps(), None, unchanged=True)[1] is None


def test_a_version_is_settled_when_the_gate_has_nothing_left_to_do() -> None:
    def is_settled(aliases: tuple[str, ...] = (), **verdict: bool) -> bool:
        tags = {"gate": json.dumps(verdict)} if verdict else {}
        return settled(Registration("agent", "2", False, aliases, tags))

    assert not is_settled() and not is_settled(("challenger",))
    assert not is_settled(("challenger", "champion"), promote=True, promoted=True), "it died behind the alias"
    assert is_settled(("champion",)) and is_settled(("champion",), promote=True, promoted=False)
    assert is_settled(promote=False, promoted=False)
    assert not is_settled(promote=True, promoted=False), "it has won, and died before the alias"
    assert is_settled(promote=True, promoted=True), "another was restored: it does not come back by itself"


def test_a_champion_that_changed_while_a_version_was_judged_is_reported(project: Project) -> None:
    first = project.train("first", rewards(0.5, 1))
    result = judge(project.settings, project.root, first, quiet)
    assert result.won and not result.promoted
    project.champion("second", rewards(0.9, 1))
    with pytest.raises(UserError, match="version 2 became champion meanwhile"):
        take_over(project.settings, project.root, result)


@pytest.mark.parametrize("call", ["get_registered_model", "get_model_version", "set_model_version_tag"])
def test_a_store_that_fails_does_not_count_as_empty(
    project: Project, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Whichever of the gate's questions fails, and however often: no loser is promoted, and no comparison forgotten."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    best = project.champion("best", rewards(0.9, 1))
    loser = project.train("loser", rewards(0.1, 1))
    ask = getattr(MlflowClient, call)
    broken: set[int] = set()
    calls = 0

    def flaky(*given: object) -> object:
        nonlocal calls
        calls += 1
        return (failing if calls in broken else ask)(*given)

    monkeypatch.setattr(MlflowClient, call, flaky)
    for broken in ({1}, {1, 2}, {2}, {3}, set(range(1, 99))):
        calls = 0
        try:
            assert not decide(project.settings, project.root, loser).promoted
        except (UserError, MlflowException) as error:
            assert "try again" in str(error) or "503" in str(error)
        broken = set()
        assert Registry(project.settings.tracking, project.root).aliases()["champion"] == best
    result = decide(project.settings, project.root, loser)
    assert not result.promoted and result.decision is not None and result.decision.number == 1


def test_each_comparison_with_a_champion_on_the_same_tasks_is_counted_once(project: Project) -> None:
    champion = project.champion("champion", rewards(0.5, 1))
    registry = Registry(project.settings.tracking, project.root)
    for number in (1, 2, 3):
        version = project.train(f"try {number}", rewards(0.5, 10 + number))
        for _ in range(2):  # the same comparison again is the same comparison
            result = judge(project.settings, project.root, version, quiet)
            assert result.decision is not None and result.decision.number == number
            assert f"This is comparison {number} with this champion" in result.reason
    kept = comparisons.noted(registry, champion, "comparison")
    assert [row["number"] for row in kept.values()] == [1, 2, 3]
    assert {"challenger", "first", "p_value", "alpha", "discordance", "time"} <= set(next(iter(kept.values())))
    # Other results of a version are another comparison, and other tasks begin anew.
    write_rewards(project.root, rewards(0.5, 20))
    version = register_policy(project.settings, project.root).version
    registry.attach_evaluation(version, project.root, evaluation_tags(project.settings, project.root))
    again = judge(project.settings, project.root, version, quiet)
    assert again.decision is not None and again.decision.number == 4
    planned = plan(project.settings.gate, project.settings.tracking, 0.95, 1000, project.root)
    assert (planned.champion, planned.number, planned.seen) == (champion, 5, 4)
    mean = sum(row["discordance"] for row in comparisons.noted(registry, champion, "comparison").values()) / 4
    assert planned.discordance == pytest.approx(mean)


def test_comparisons_at_the_same_moment_are_never_both_the_first(project: Project) -> None:
    """Two threads with a client each begin together, as two machines would."""
    champion = project.train("champion", rewards(0.5, 1))
    numbers: list[int] = []
    together = threading.Barrier(4)

    def take(name: str) -> None:
        registry = Registry(project.settings.tracking, project.root)
        together.wait()
        numbers.append(comparisons.numbered(registry, champion, "comparison", name, "tasks", {})["number"])

    threads = [threading.Thread(target=take, args=(f"c{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(number >= place for place, number in enumerate(sorted(numbers), start=1)), numbers
    registry = Registry(project.settings.tracking, project.root)
    assert len(comparisons.noted(registry, champion, "comparison")) == 4
    assert comparisons.numbered(registry, champion, "comparison", "late", "tasks", {})["number"] == 5
    assert comparisons.numbered(registry, champion, "comparison", "other", "other tasks", {})["number"] == 1


def test_the_verdict_is_kept_with_the_version_in_the_description_and_as_a_page(project: Project) -> None:
    project.champion("first", rewards(0.3, 1))
    second = project.train("second", rewards(0.9, 2))
    result = decide(project.settings, project.root, second)
    assert result.decision is not None and "3.00 agent turns, +0.00 against the champion" in result.reason
    registry = Registry(project.settings.tracking, project.root)
    version = registry.get(second)
    assert json.loads(version.tags["gate"])["reason"] == result.reason and result.reason in version.description
    assert registry.history()[-1].reason == result.decision.reason, "the history keeps one sentence of it"
    kept = registry.download(version, "gate", project.root / "kept")
    assert result.decision.reason in (kept / "gate.html").read_text()
    assert (project.root / "reports/gate.html").read_text() == (kept / "gate.html").read_text()


def test_fresh_test_tasks_are_due_after_so_many_comparisons_or_days(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def due(**gate: int) -> int:
        return fresh_test_first(project.settings.model_copy(update={"gate": GateSettings(**gate)}), project.root)

    assert due(fresh_after_comparisons=1) == due(fresh_after_days=1) == 0, "nothing is registered yet"
    champion = project.champion("champion", rewards(0.5, 1))
    judge(project.settings, project.root, project.train("second", rewards(0.5, 2)), quiet)
    assert due() == due(fresh_after_comparisons=2) == due(fresh_after_days=1) == 0
    assert due(fresh_after_comparisons=1) == 1000
    registry = Registry(project.settings.tracking, project.root)
    ((name, row),) = comparisons.noted(registry, champion, "comparison").items()
    comparisons.note(registry, champion, "comparison", name, row | {"time": "2026-01-01T00:00:00Z"})
    assert due(fresh_after_days=30) == 1000
    # A retraining on fresh tasks has lost, and its params.yaml was not merged: the next one goes on with its tasks.
    comparisons.note(registry, champion, "comparison", name, row | {"first": 1000})
    assert due(fresh_after_comparisons=2) == 1000 and due(fresh_after_comparisons=1) == 2000
    # Of other tasks nothing has served.
    comparisons.note(registry, champion, "comparison", name, row | {"drawing": "of another seed"})
    assert due(fresh_after_comparisons=1) == 0

    monkeypatch.setattr("mlflow.MlflowClient.search_model_versions", failing)
    assert due() == 0
    with pytest.raises(UserError, match="cannot say how often the test tasks have served"):
        due(fresh_after_comparisons=1)


def test_a_champion_that_gets_worse_is_reported(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    now = rewards(0.9, 1)
    monkeypatch.setattr(promotion, "run_command", lambda stage, command, folder, *rest: write_rewards(folder, now))
    settings, registry = project.settings, Registry(project.settings.tracking, project.root)
    with pytest.raises(UserError, match="there is no champion to look at yet"):
        watch(settings, project.root, quiet)
    champion = project.champion("champion", now)
    look = watch(settings, project.root, quiet)
    assert (look.drifted, look.number) == (False, 1) and "does exactly what it did" in look.sentence
    now = rewards(0.2, 2)
    look = watch(settings, project.root, quiet)
    assert (look.drifted, look.number) == (True, 2) and "Retrain now" in look.sentence
    assert comparisons.measured(registry, registry.get(champion)).rewards == now, (
        "the next challenger is compared with the agent of today"
    )
    assert watch(settings, project.root, quiet).drifted, "with the first measurement, not with the last one"
    kept = list(comparisons.noted(registry, champion, "look").values())
    assert [row["number"] for row in kept] == [1, 2, 3] and kept[1]["drifted"]
    (project.root / "data/tasks/test.parquet").write_bytes(b"fresh")
    for number, words in ((0, "for the first time"), (1, "does exactly what it did")):
        look = watch(settings, project.root, quiet)
        assert look.number == number and words in look.sentence


def test_what_was_deleted_in_the_store_is_one_sentence_each(project: Project) -> None:
    settings, root = project.settings, project.root
    first, second = project.train("first", rewards(0.3, 1)), project.train("second", rewards(0.9, 2))
    decide(settings, root, first)
    registry = Registry(settings.tracking, root)
    place = registry.client.get_logged_model(model_id(registry.get(first))).artifact_location.removeprefix("file://")
    shutil.rmtree(Path(place) / "evaluation")
    with pytest.raises(UserError, match=rf"/{first}: no evaluation \(.*No such artifact"):
        decide(settings, root, second)
    assert registry.aliases()["champion"] == first
    registry.client.delete_experiment(registry.store.experiment_id)
    count = len(registry.versions())
    with pytest.raises(UserError, match=r"the experiment sweetrl was deleted.*experiments restore --experiment-id 1"):
        project.train("third", rewards(0.9, 3))
    assert len(registry.versions()) == count
    registry.client.restore_experiment(registry.store.experiment_id)
    assert project.train("third", rewards(0.9, 3))
