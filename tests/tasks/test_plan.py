"""What `sweetrl run --dry-run` says, and runs of some of the stages: in a toy project under real git and DVC."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweetrl.config.yaml_files import read_yaml
from sweetrl.errors import UserError
from tasks.pipeline import Selection, StageFailed, stage_states
from tasks.training import at_rest, plan, run_pipeline
from tests.tasks.fake_project import quiet_steps, start_dvc


def would(root: Path, *arguments: object) -> dict[str, str]:
    return {planned.stage: planned.would for planned in plan(root, *arguments)}  # type: ignore[arg-type]


def test_a_plan_is_what_a_run_then_does(toy) -> None:
    """Parameters may also be given without a file: the plan is that of a file with them, and nothing is changed."""
    definition = toy.root / "dvc.yaml"
    definition.write_text(definition.read_text().replace("[toy.yaml: [second]]", "[toy.yaml: [second], collect]"))
    assert would(toy.root) == {"first": "run", "second": "run", "third": "run"}
    lines: list[str] = []
    run_pipeline(toy.root, quiet_steps(lines.append))
    assert lines[0] == "stage 1 of 3: first" and lines[1].startswith("first: ran in ")
    assert toy.runs() == ["first", "second", "third"]
    assert would(toy.root) == {"first": "skip", "second": "skip", "third": "skip"}

    before = {path: path.read_bytes() for path in toy.root.iterdir() if path.is_file()}
    tree = read_yaml(toy.root / "params.yaml") | {"collect": {"tasks": 9, "first": 0}}
    first, second, third = plan(toy.root, Selection(), tree)
    assert (first.would, second.would, third.would) == ("skip", "run", "perhaps")
    assert (second.reason, third.reason) == ("collect.tasks: 4 -> 9", "if second makes something else")
    assert {path: path.read_bytes() for path in toy.root.iterdir() if path.is_file()} == before

    toy.set(third="b")
    (third,) = plan(toy.root)[2:]
    assert third.why == ("third: a -> b",)
    (toy.root / "data/first.txt").unlink()
    first, second, _ = plan(toy.root)
    assert first.why == ("output data/first.txt: deleted",) and second.why == ("input data/first.txt: deleted",)


@pytest.mark.slow
def test_some_of_the_stages_run_and_nothing_is_registered_while_others_are_stale(toy) -> None:
    until = run_pipeline(toy.root, quiet_steps(), selection=Selection(until="second"))
    assert toy.runs() == ["first", "second"]
    assert [stage.status for stage in until.stages] == ["ran", "ran", "left"] and until.stale == ("third",)
    outcome = at_rest(toy.root, Selection(until="second"))
    assert outcome is not None and outcome.unchanged and outcome.stale == ("third",)
    assert at_rest(toy.root) is None

    toy.set(first="b")
    begun = run_pipeline(toy.root, quiet_steps(), selection=Selection(begin="third"))
    assert toy.runs() == ["first", "second", "third"]
    assert [stage.status for stage in begun.stages] == ["left", "left", "ran"] and begun.stale == ("first",)
    assert run_pipeline(toy.root, quiet_steps()).stale == () and toy.runs()[3] == "first"
    assert run_pipeline(toy.root, quiet_steps(), selection=Selection(begin="third")).stale == ()


def test_what_cannot_be_run_is_one_sentence(toy) -> None:
    with pytest.raises(UserError, match="--from third --until first: first comes first"):
        plan(toy.root, Selection("third", "first"))
    with pytest.raises(StageFailed, match=r"stage third failed: .*data/second\.txt"):
        run_pipeline(toy.root, quiet_steps(), selection=Selection("third"))


def test_a_link_that_leads_to_nothing_in_a_shared_cache_is_one_sentence(tmp_path: Path) -> None:
    """`dvc gc` of another project, or a disk that is not mounted: DVC itself ends in a traceback."""
    start_dvc(tmp_path, no_scm=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "params.yaml").touch()
    (tmp_path / "data/a.txt").symlink_to(tmp_path / "gone")
    (tmp_path / "dvc.yaml").write_text("stages: {use: {cmd: 'true', deps: [data]}}")
    dep = f"{{path: data, hash: md5, md5: {'0' * 32}.dir}}"
    (tmp_path / "dvc.lock").write_text(f"schema: '2.0'\nstages: {{use: {{cmd: 'true', deps: [{dep}]}}}}")
    for look in (plan, stage_states):
        with pytest.raises(UserError, match=r"data/a\.txt: this link leads to nothing"):
            look(tmp_path)
