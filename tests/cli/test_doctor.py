"""`sweetrl doctor`: what it finds on a machine, and what it says to do."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sweetrl.cli import doctor, main
from sweetrl.sandbox.client import Sandbox


def findings(*looks: Any) -> dict[str, doctor.Check]:
    return {check.name: check for look in looks for check in look()}


def test_doctor_finds_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("model: {base: models/base}\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "requirements.lock").write_text("no-such-package-here==1.0\npydantic==0.1\n")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    checks = findings(doctor.packages, doctor.project, doctor.services, doctor.git)
    statuses = {name: checks[name].status for name in ("packages", "base model", "mlflow server")}
    assert set(statuses.values()) == {"fail"}, checks
    assert "no-such-package-here missing (locked 1.0)" in checks["packages"].seen
    assert "make base-model" in checks["base model"].advice
    assert checks["mlflow server"].seen.startswith("http://127.0.0.1:9: ")
    assert (checks["prefect server"].status, checks["git"].status) == ("ok", "warn")
    assert all(check.advice for check in checks.values() if check.status != "ok")


def test_doctor_is_content_here() -> None:
    checks = findings(doctor.python, doctor.machine, doctor.isolation, doctor.torch, doctor.browser)
    assert {check.status for check in checks.values()} <= {"ok", "warn"}, checks


def test_doctor_says_what_protects_and_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweetrl.sandbox.client.Sandbox", partial(Sandbox, without=("namespaces",)))
    (check,) = doctor.isolation()
    assert (check.status, check.seen) == ("warn", "landlock+seccomp+rlimits")
    assert "which files exist" in check.advice and "no folder to write to" in check.advice
    assert "Without namespaces" in check.advice


def test_the_pipelines_packages_are_needed_in_a_project_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    checks = findings(doctor.packages)
    assert (checks["dvc"].status, checks["peft"].status) == ("warn", "fail")
    assert "sweetrl[pipeline]" in checks["dvc"].advice


def test_one_mistake_in_the_parameters_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("sed: 1\n")
    (wrong,) = (check for check in [*doctor.project(), *doctor.browser()] if check.status == "fail")
    assert wrong.name == "params.yaml" and "unknown parameter `sed`" in wrong.seen


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise RuntimeError("boom")

    looks = "python packages git machine torch isolation project browser services"
    for name in looks.split():
        monkeypatch.setattr(doctor, name, broken)
    checks = doctor.examine()
    assert {check.status for check in checks} == {"fail"} and len(checks) == 9
    assert "RuntimeError: boom" in checks[0].seen


def test_doctor_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: [doctor.Check("base model", "fail", "gone", "`make base-model`")])
    result = CliRunner().invoke(main.app, ["doctor"])
    assert result.exit_code == 1 and "make base-model" in result.output
