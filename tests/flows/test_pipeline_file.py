"""dvc.yaml, params.yaml and the stages' own table agree; names in prefect.yaml and infra/ exist."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import pytest
import yaml

from sweetrl.config.settings import parse_settings
from sweetrl.stages.iterate import STAGES as INNER
from sweetrl.stages.parameters import PARAMETERS, stage_parameters

ROOT = Path(__file__).resolve().parents[2]
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
ITERATIONS = yaml.safe_load((ROOT / "iterations/dvc.yaml").read_text())["stages"]
SOURCES = yaml.safe_load((ROOT / "params.yaml").read_text())["sources"]
DEPLOYMENTS = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
# Data, not code: files of tasks, dialogues (not for iterations after the first), and the base.
DATA = TASKS, DIALOGUES, BASE = "${sources.tasks}", "${sources.trajectories}", "${sources.base}"


def code(stage: dict) -> set[str]:
    """The code that a stage depends on; what params.yaml chooses is written as ${sources.suite}."""
    return {path for path in stage["deps"] if path.startswith(("src/", "$")) and path not in DATA}


@pytest.mark.parametrize("stage", sorted(STAGES | ITERATIONS))
def test_parameters_of_a_stage_are_the_same_in_dvc_yaml_and_in_its_scratch_key(stage: str) -> None:
    assert tuple((STAGES | ITERATIONS)[stage]["params"]) == PARAMETERS[stage]


@pytest.mark.parametrize(
    "change",
    [
        {"critic": {"privileged": False}},
        {"critic": {"privileged_position": "before"}},
        {"rank": {"reply_types": "any"}},
    ],
)
def test_the_policy_follows_what_its_training_reads_of_other_sections(change: dict) -> None:
    """grpo.credit: privileged lays dialogues out as the critic sees them; listwise centres as ranking does."""
    first, other = (parse_settings({"rank": {"reply_types": "mean_centered"}} | more) for more in ({}, change))
    assert stage_parameters("train-policy", first) != stage_parameters("train-policy", other)


@pytest.mark.parametrize("stage", sorted(STAGES | ITERATIONS))
def test_a_stage_runs_its_own_module_and_depends_on_it(stage: str) -> None:
    module, declared = f"sweetrl.stages.{stage.replace('-', '_')}", (STAGES | ITERATIONS)[stage]
    assert declared["cmd"] == f"python -m {module}"
    assert importlib.util.find_spec(module) is not None
    for path in code(declared):
        assert (ROOT / SOURCES.get(path.removeprefix("${sources.").removesuffix("}"), path)).exists(), path


def test_no_stage_depends_on_a_run_file() -> None:
    for stage in STAGES.values():
        assert not any(path.startswith("reports/runs") for path in stage["deps"])


@pytest.mark.parametrize("stage", sorted(STAGES | ITERATIONS))
def test_a_stage_depends_on_the_code_of_what_its_parameters_choose(stage: str) -> None:
    """A stage that reads `suite`, `method`, `reward` or `simulator` depends on the source of its value, too."""
    definition = (STAGES | ITERATIONS)[stage]
    chosen = [f"${{sources.{name}}}" for name in SOURCES if name in definition["params"]]
    named = [path for path in definition["deps"] if path.startswith("$") and path not in DATA]
    assert named == [path for path in chosen if path not in DATA]


def test_stages_depend_on_the_data_that_params_yaml_names() -> None:
    def who(path: str) -> list[str]:
        return [name for name, stage in (STAGES | ITERATIONS).items() if path in stage["deps"]]

    assert (who(TASKS), who(DIALOGUES)) == (["tasks"], ["collect"])
    assert who(BASE) == [name for name, stage in (STAGES | ITERATIONS).items() if "model" in stage["params"]]
    assert not who("models/base"), "another folder may be named"


@pytest.mark.parametrize(("stage", "inner"), [("iterate", INNER), ("evaluate-iterations", ("evaluate",))])
def test_iterations_depend_on_all_that_the_stages_they_run_depend_on(stage: str, inner: tuple[str, ...]) -> None:
    paths = {path for name in inner for path in code(STAGES[name])}
    paths.add(f"src/sweetrl/stages/{stage.replace('-', '_')}.py")
    outermost = {path for path in paths if not any(str(folder) in paths for folder in Path(path).parents)}
    assert code(ITERATIONS[stage]) == outermost


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_a_deployment_names_a_flow_and_its_parameters(deployment: dict) -> None:
    path, name = deployment["entrypoint"].split(":")
    assert (ROOT / path).exists()
    flow = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert flow.name == name
    inspect.signature(flow.fn).bind(**deployment["parameters"])
    assert deployment["work_pool"]["name"] == "{{ $SWEETRL_PROJECT }}"
    for shared in (
        deployment["name"],
        *(trigger["match"]["prefect.resource.id"] for trigger in deployment.get("triggers", ())),
    ):
        assert "{{ $SWEETRL_PROJECT }}" in shared, "another project on the server has its own"


def test_the_compose_file_names_files_that_exist() -> None:
    services = yaml.safe_load((ROOT / "infra/compose.yaml").read_text())["services"]
    assert set(services) == {"database", "s3", "mlflow", "prefect", "worker", "backup-databases", "backup"}
    for service in services.values():
        if "build" in service:
            assert (ROOT / "infra" / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (ROOT / "infra" / source).exists()
        assert set(service.get("depends_on", {})) <= set(services)


def test_the_lock_has_an_sqlalchemy_with_which_prefects_server_starts_scheduled_runs() -> None:
    """With 2.1 its scheduler ends in an error each time, in its own log only: no nightly run ever begins."""
    pinned = dict(line.split("==") for line in (ROOT / "requirements.lock").read_text().split() if "==" in line)
    assert pinned["prefect"].startswith("3.9.") and pinned["SQLAlchemy"].startswith("2.0.")
