"""Registration, aliases, lineage and loading back, on a real embedded store with a tiny random model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sweetrl.config.settings import Settings, parse_settings
from sweetrl.errors import UserError
from sweetrl.file_hashes import dvc_hash, file_hash
from sweetrl.io import write_json
from sweetrl.stages.registration import config_of, current_registration, evaluation_key, register_policy
from sweetrl.tracking.comparisons import measured
from sweetrl.tracking.lineage import lineage
from sweetrl.tracking.registry import Registry, split_reference
from sweetrl.tracking.runs import RunLog
from sweetrl.tracking.store import RECORD_TAG, connect
from tests.serve.made import make_project, write_rewards
from tests.tasks.fake_project import commit, git


@pytest.fixture(scope="module")
def project(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project folder in git with a trained policy, results, a dvc.lock and run files, as the pipeline leaves it."""
    root = tmp_path_factory.mktemp("project")
    make_project(root, tiny_model)
    write_rewards(root, {"a": 0.0, "b": 1.0})
    lock = {"stages": {"collect": {"cmd": "x", "outs": [{"path": "data/trajectories", "md5": "0123.dir"}]}}}
    (root / "dvc.lock").write_text(yaml.safe_dump(lock))
    git(root, "init", "-q")
    commit(root, {"params.yaml": "seed: 7\n"})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setenv("SWEETRL_TRACKING", "on")
        yield root


@pytest.fixture(scope="module")
def settings() -> Settings:
    return parse_settings({"agent": {"max_new_tokens": 8}, "tracking": {"model": "agent-under-test"}})


@pytest.fixture(scope="module")
def first(project: Path, settings: Settings) -> str:
    """Register the policy the way the flow does: a parent run, a training run below it, then the version."""
    parent = RunLog(settings.tracking, "train", root=project)
    parent.log_params({"seed": 7, "policy": {"beta": 0.1}})
    parent.open()
    child = RunLog(settings.tracking, "train-policy", parent=parent.run_id, root=project)
    child.log_input("preferences", project / "params.yaml")
    child.log_metrics({"loss": 0.5, "seconds": 2.0, "generated_tokens/base": 3, "simulator/generated_tokens": 9})
    run_file = project / "reports/runs/train-policy.json"
    write_json(run_file, {"stage": "train-policy", "metrics": {"loss": 0.5}})
    child.set_tags({RECORD_TAG: file_hash(run_file)})
    child.finish()
    registered = register_policy(settings, project, parent.run_id)
    parent.finish()
    assert registered.created
    assert registered.aliases == ("challenger",)
    return registered.version


def test_a_registration_is_noted_outside_mlflow_until_the_store_changes(
    project: Path, settings: Settings, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = current_registration(settings, project)
    assert noted is not None and (noted.version, noted.created, noted.aliases) == (first, False, ("challenger",))
    opened: list[Path | None] = []
    monkeypatch.setattr(
        "sweetrl.stages.registration.Registry",
        lambda tracking, root: opened.append(root) or Registry(tracking, root),
    )
    assert current_registration(settings, project) == noted and not opened
    Registry(settings.tracking, project).client.set_model_version_tag(noted.model, first, "gate", "null")
    again = current_registration(settings, project)
    assert again is not None and again.tags == noted.tags | {"gate": "null"} and len(opened) == 1
    assert current_registration(settings, project) == again and len(opened) == 1
    before = (project / "reports/evaluation.json").read_bytes()
    write_json(project / "reports/evaluation.json", {"tasks": 7})
    assert current_registration(settings, project) is None, "it was evaluated anew"
    (project / "reports/evaluation.json").write_bytes(before)
    Registry(settings.tracking, project).client.delete_model_version_tag(noted.model, first, "gate")


def test_the_pages_of_a_version_begin_with_the_verdict_and_the_result(
    project: Path, settings: Settings, first: str
) -> None:
    registry = Registry(settings.tracking, project)

    def described() -> str:
        return str(registry.get(first).description)

    assert described().startswith("A peft adapter trained by sweet")
    before = registry.get(first).tags["evaluation"]
    numbers = {"tasks": 1000, "success_before": 0.263, "success_after": 0.839}
    numbers |= {"success_difference": 0.576, "success_low": 0.542, "success_high": 0.608}
    registry.client.set_model_version_tag(registry.name, first, "evaluation", json.dumps(numbers))
    registry.note_gate(first, {"promote": True, "promoted": False, "against": "", "reason": "It is better."})
    verdict, table, description = described().split("\n\n")
    assert verdict == "**Gate:** It is better. (It has yet to become champion.)"
    assert (
        "| **tasks solved, %** | 26.3 | **83.9** | +57.6 [+54.2, +60.8] |" in table and "1,000 held-out tasks" in table
    )
    registry.note_gate(first, {"promote": False, "promoted": False, "against": "1", "reason": "It is worse."})
    assert described().split("\n\n") == ["**Gate:** It is worse.", table, description]
    # What somebody has written below it on MLflow's page stays.
    registry.client.update_model_version(registry.name, first, f"{described()}\n\nNot before Friday.\n\nAda")
    registry.note_gate(first, {"promote": False, "promoted": False, "against": "1", "reason": "It is no better."})
    words = ["**Gate:** It is no better.", table, description, "Not before Friday.", "Ada"]
    assert described().split("\n\n") == words
    registry.client.update_model_version(registry.name, first, description)
    registry.client.delete_model_version_tag(registry.name, first, "gate")
    registry.client.set_model_version_tag(registry.name, first, "evaluation", before)


def test_two_that_register_the_same_adapter_at_once_share_one_version(
    project: Path, settings: Settings, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both look before either has created its version: the later gives way to the earlier."""
    find, looked = Registry.find, []

    def too_early(registry: Registry, adapter: str, base: str):
        looked.append(adapter)
        return None if len(looked) == 1 else find(registry, adapter, base)

    monkeypatch.setattr(Registry, "find", too_early)
    again = register_policy(settings, project)
    assert (again.version, again.created, len(looked)) == (first, False, 2)
    registry = Registry(settings.tracking, project)
    assert len(registry.versions()) == 1 and registry.aliases() == {"challenger": first}


def test_evaluations_at_different_prices_of_a_question_are_not_compared(project: Path, settings: Settings) -> None:
    def key(cost: float) -> str:
        reward = settings.reward.model_copy(update={"turn_cost": cost})
        return evaluation_key(settings.model_copy(update={"reward": reward}), project)

    assert key(0.0) == evaluation_key(settings, project)
    assert len({key(0.0), key(0.05), key(0.1)}) == 3


def test_an_agent_that_answers_at_once_is_compared_and_registered_as_such(project: Path, settings: Settings) -> None:
    """Evaluated by `method: single-turn` a champion looked far worse than before, on the same tasks."""
    full = settings.model_copy(update={"agent": settings.agent.model_copy(update={"prompt": "full"})})
    single = full.model_copy(update={"method": "single-turn"})
    assert evaluation_key(single, project) != evaluation_key(full, project)
    before, after = config_of(full, project), config_of(single, project)
    assert (before.max_turns, after.max_turns) == (settings.agent.max_turns, 1)
    assert before.system_prompt != after.system_prompt


def test_lineage_leads_from_the_version_to_runs_commit_data_and_parameters(
    project: Path, settings: Settings, first: str
) -> None:
    origins = lineage("agent-under-test@challenger", settings.tracking, project)
    assert origins.version == first
    assert origins.commit == git(project, "rev-parse", "HEAD")
    assert origins.run is not None and origins.run.name == "train-policy"
    assert origins.run.inputs[0].path.endswith("params.yaml")
    assert origins.parent is not None and origins.parent.name == "train"
    assert origins.params == {"policy.beta": "0.1", "seed": "7"}
    assert origins.data == {"data/trajectories": "0123.dir"}
    assert origins.cost == {"seconds": 2.0, "generated_tokens": 3.0, "simulator_generated_tokens": 9.0}
    assert [stage.run_id for stage in origins.stages] == [origins.run.run_id]
    assert origins.evaluation["mean"] == 0.5
    text = dict(origins.rows())
    assert origins.commit in text["commit"]
    assert text["data data/trajectories"] == "0123.dir"


def test_of_equal_runs_of_a_stage_the_newest_counts_that_has_ended_well(project: Path, settings: Settings) -> None:
    """Only runs of the project's own experiment count; records without a run in this store are left out."""
    folder, ids = project / "other", dict[str, str | None]()
    write_json(folder / "reports/runs/collect.json", {"stage": "collect"})
    write_json(folder / "reports/runs/rank.json", {"stage": "rank"})
    record = {RECORD_TAG: file_hash(folder / "reports/runs/collect.json")}
    elsewhere = settings.tracking.model_copy(update={"experiment": "another"})
    statuses = {"older": "FINISHED", "newer": "FINISHED", "failed": "FAILED", "elsewhere": "FINISHED"}
    for name, status in statuses.items():
        log = RunLog(elsewhere if name == "elsewhere" else settings.tracking, name, dict(record), root=project)
        log.finish(status)
        ids[name] = log.run_id
    store = connect(settings.tracking, project)
    assert {stage: run.info.run_id for stage, run in store.stage_runs(folder).items()} == {"collect": ids["newer"]}


def test_a_registered_version_loads_back_and_answers_as_the_endpoint_does(project: Path, first: str) -> None:
    import mlflow

    loaded = mlflow.pyfunc.load_model(f"models:/agent-under-test/{first}")
    dialogue = [{"role": "user", "content": "I want a function that computes the price of a ticket."}]
    reply = loaded.predict(dialogue, params={"seed": 3})
    assert isinstance(reply, str) and reply
    assert loaded.predict(dialogue, params={"seed": 3}) == reply
    longer = [*dialogue, {"role": "assistant", "content": reply}, {"role": "user", "content": "Round it to 2 places."}]
    assert isinstance(loaded.predict(longer), str)
    with pytest.raises(Exception, match="must be user, assistant, user"):
        loaded.predict([*dialogue, {"role": "assistant", "content": "What is the rate?"}])
    for wrong in (-1.0, 2.5, float("nan"), float("inf")):
        with pytest.raises(UserError, match=r"`temperature` is .*; it must be a number from 0 to 2\."):
            loaded.predict(dialogue, params={"temperature": wrong})
    for number in (0, -5):
        with pytest.raises(UserError, match=rf"`max_new_tokens` is {number}; it must be a whole number from 1\."):
            loaded.predict(dialogue, params={"max_new_tokens": number})
    with pytest.raises(UserError, match="tokens, the context"):
        loaded.predict([{"role": "user", "content": "price " * 5000}])
    most = loaded.predict(dialogue, params={"seed": 3, "max_new_tokens": 10**12})
    assert most == reply, "more than the agent's own is the agent's own"


@pytest.mark.parametrize("name", ["it's", "a\nb", " "])
def test_a_name_that_no_registered_model_can_have_is_one_sentence(name: str, project: Path, settings: Settings) -> None:
    with pytest.raises(UserError, match="this is no name of a registered model"):
        Registry(settings.tracking.model_copy(update={"model": name}), project)


def test_a_version_holds_code_base_requirements_example_and_description(
    project: Path, settings: Settings, first: str, tmp_path: Path
) -> None:
    import mlflow

    registry = Registry(settings.tracking, project)
    version = registry.get(first)
    assert version.description and "trained by sweet on the domain backend" in version.description
    stored = registry.download(version, "", tmp_path)
    pinned = (stored / "requirements.txt").read_text().split()
    assert {requirement.partition("==")[0] for requirement in pinned} >= {"mlflow", "torch", "transformers", "peft"}
    assert not any("sweetrl" in requirement or "+" in requirement for requirement in pinned)
    assert (stored / "code/sweetrl/tracking/chat_agent.py").exists()
    assert dvc_hash(stored / "artifacts/base") == version.tags["base_hash"] == dvc_hash(project / "models/base")
    assert str(project) not in (stored / "MLmodel").read_text()
    loaded = mlflow.pyfunc.load_model(str(stored))
    assert loaded.metadata.load_input_example(str(stored)).to_dict("records")[0]["role"] == "user"
    assert loaded.metadata.signature is not None


def mlflow_reply(stored: Path, words: str) -> str:
    import mlflow

    return str(mlflow.pyfunc.load_model(str(stored)).predict([{"role": "user", "content": words}], params={"seed": 3}))


def test_a_base_too_large_to_be_stored_is_named_and_must_be_the_right_one(
    project: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    tracking = settings.tracking.model_copy(update={"base_mib": 0, "model": "without-base"})
    registered = register_policy(settings.model_copy(update={"tracking": tracking}), project)
    registry = Registry(tracking, project)
    stored = registry.download(registry.get(registered.version), "", tmp_path)
    assert not (stored / "artifacts/base").exists()
    assert isinstance(mlflow_reply(stored, "A ticket."), str)  # found where we are, in the project
    config = project / "models/base/config.json"
    before = config.read_text()
    config.write_text(before + "\n")
    try:
        with pytest.raises(Exception, match="base is another"):
            mlflow.pyfunc.load_model(str(stored))
    finally:
        config.write_text(before)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match=r"is not here; set SWEETRL_BASE_MODEL"):
        mlflow.pyfunc.load_model(str(stored))
    monkeypatch.setenv("SWEETRL_BASE_MODEL", str(tmp_path / "nowhere"))
    with pytest.raises(Exception, match=r"SWEETRL_BASE_MODEL: .*nowhere is no folder"):
        mlflow.pyfunc.load_model(str(stored))
    monkeypatch.setenv("SWEETRL_BASE_MODEL", str(project / "models/base"))
    assert isinstance(mlflow_reply(stored, "A ticket."), str)


def test_references_are_split() -> None:
    assert split_reference("agent@challenger", "x") == ("agent", "challenger")
    assert split_reference("agent/3", "x") == ("agent", "3")
    assert split_reference("agent", "x") == ("agent", "champion")
    with pytest.raises(UserError, match="no alias"):
        split_reference("agent@", "x")


def test_evaluation_is_brought_up_to_date_without_a_new_version(project: Path, settings: Settings, first: str) -> None:
    registry = Registry(settings.tracking, project)
    before = len(registry.versions())
    write_rewards(project, {"a": 0.5, "b": 1.0})
    again = register_policy(settings, project)
    assert not again.created
    assert len(registry.versions()) == before
    version = registry.get(again.version)
    assert measured(registry, version).rewards == {"a": 0.5, "b": 1.0}
    assert json.loads(version.tags["evaluation"])["mean"] == 0.75
