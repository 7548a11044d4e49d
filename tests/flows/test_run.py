"""`python -m flows.<name>`: what is wrong in params.yaml is an error before anything heavy is loaded."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from sweetrl.errors import UserError
from tests.tasks.fake_project import python

HEAVY = ("prefect", "mlflow", "torch", "transformers", "sqlalchemy", "great_expectations", "dvc.repo")


@pytest.mark.parametrize("module", ["flows.run", "sweetrl.stages.collect"])
def test_wrong_parameters_are_an_error_before_anything_heavy_is_loaded(module: str, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("seed: x\n")
    done = python("-X", "importtime", "-m", module, cwd=tmp_path)
    lines = done.stderr.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time")}
    errors = [line for line in lines if not line.startswith("import time")]
    assert (done.returncode, len(errors)) == (1, 1), errors
    assert errors[0].startswith("error: params.yaml: parameter `seed` = 'x'")
    assert "pydantic" in imported and not imported & set(HEAVY)


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("own:Own", "method_options of own:Own: unknown parameter `epoch` (did you mean `epochs`?)"),
        ("zero-shot", "`method_options` are read by methods of your own, and not by zero-shot; set the keys of the "),
    ],
)
def test_options_that_a_method_has_not_are_an_error_before_anything_is_run(
    method: str, sentence: str, tmp_path: Path
) -> None:
    """Before, they were found in the seventh stage, after everything that takes time."""
    (tmp_path / "own.py").write_text("import sweetrl\n\nclass Own(sweetrl.Method):\n    pass\n")
    (tmp_path / "params.yaml").write_text(f"method: {method}\nmethod_options: {{epoch: 2}}\n")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    for words in ((), ("--dry-run",)):
        done = python("-m", "flows.run", *words, cwd=tmp_path)
        assert done.returncode == 1 and done.stderr.count("\n") == 1
        assert done.stderr.startswith(f"error: params.yaml: {sentence}")


def test_a_user_without_a_name_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container under a user id without a name: DVC asks for the name, and ended in a trace."""
    code = "import pwd\npwd.getpwuid = lambda uid: {}[uid]\nimport flows, getpass\nprint(getpass.getuser())"
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    done = python("-c", code)
    assert done.stdout.strip() == f"uid-{os.getuid()}", done.stderr


@pytest.mark.parametrize(("attempts", "would", "stops"), [(4, "run", True), (2, "run", False), (4, "left", False)])
def test_before_dialogues_are_sampled_for_long_the_project_is_checked(
    attempts: int, would: Any, stops: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    from flows import run
    from tasks.training import PlannedStage

    monkeypatch.setattr(run, "plan", lambda root, selection: [PlannedStage("collect", would)])
    (tmp_path / "params.yaml").write_text(f"model: {{base: gone}}\ncollect: {{tasks: 100, attempts: {attempts}}}\n")
    with pytest.raises(UserError, match="nothing was run") if stops else nullcontext():
        run.check_first(tmp_path, run.Selection())
    out, shown = capfd.readouterr()
    assert out == "" and ("base model\tgone: no config.json" in shown) == stops
