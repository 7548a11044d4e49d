"""What a run would do, and why: the stages that DVC finds changed, and those behind them. Nothing is changed for it.

Parameters may be other ones than those in params.yaml (`sweetrl run --dry-run --set ...`): they are compared with what
dvc.lock has recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sweetrl.config.overrides import differences, value_of
from sweetrl.config.yaml_files import read_yaml
from sweetrl.errors import UserError, did_you_mean
from tasks.pipeline import PIPELINE, Selection, open_stages

if TYPE_CHECKING:
    from dvc.stage import Stage

Would = Literal["run", "perhaps", "skip", "left"]
SHOWN = 3  # reasons of one stage that are told one by one


@dataclass(frozen=True)
class PlannedStage:
    """What would become of a stage: `run`; `perhaps` (if those before it make something else); `skip`; `left` out."""

    stage: str
    would: Would
    why: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why, in one line."""
        more = f" and {len(self.why) - SHOWN} more" if len(self.why) > SHOWN else ""
        return "; ".join(self.why[:SHOWN]) + more


def plan(root: Path, selection: Selection | None = None, tree: Mapping[str, Any] | None = None) -> list[PlannedStage]:
    """Return what a run of the stages in `selection` (default: all) would do, in order.

    `tree` are the parameters, where they are not those in params.yaml.
    """
    written = read_yaml(root / "params.yaml") or {}
    tree = written if tree is None else tree
    edited = [key for key, _, _ in differences(written, tree)]
    definitions = (read_yaml(root / PIPELINE) or {}).get("stages", {})
    planned: list[PlannedStage] = []
    makers: dict[str, str] = {}  # output -> the stage that would make it again
    with open_stages(root) as stages:
        chosen = (selection or Selection()).of(list(stages))
        for name, stage in stages.items():
            elsewhere = any(f"${{{key}}}" in str(definitions.get(name, "")) for key in edited)
            why = tuple(_reasons(stage, tree, elsewhere))
            behind = [] if stage.frozen else sorted({makers[str(dep)] for dep in stage.deps if str(dep) in makers})
            would: Would = "left" if name not in chosen else "run" if why else "perhaps" if behind else "skip"
            if would == "perhaps":
                why = (f"if {' or '.join(behind)} makes something else",)
            planned.append(PlannedStage(name, would, why))
            if would in ("run", "perhaps"):
                makers |= {str(out): name for out in stage.outs}
    return planned


def _reasons(stage: Stage, tree: Mapping[str, Any], elsewhere: bool) -> Iterator[str]:
    """Why `stage` has changed since dvc.lock was written; `elsewhere`: its paths would be other ones."""
    from dvc.dependency.param import ParamsDependency

    if elsewhere or stage.changed_stage():
        yield "its command, inputs or outputs are described otherwise in dvc.yaml"
    for dep in [] if stage.frozen else stage.deps:
        if not isinstance(dep, ParamsDependency):
            yield from (f"input {path}: {how}" for path, how in dep.status().items())
            continue
        recorded = dep.hash_info.value if dep.hash_info else None
        if recorded is None:
            yield "it has never run here"
            continue
        values = tree if str(dep) == "params.yaml" else read_yaml(Path(dep.fs_path)) or {}
        now = {key: value_of(values, key) for key in dep.params}
        for name, before, after in differences({key: recorded.get(key) for key in now}, now):
            yield f"{name}: {_shown(before)} -> {_shown(after)}"
    for out in stage.outs:
        yield from (f"output {path}: {how}" for path, how in out.status().items())


def _shown(value: Any) -> str:
    return "nothing" if value in (None, "") else str(value)


def check_stage(root: Path, option: str, name: str | None) -> None:
    """Raise a UserError where `name`, given for `option`, is no stage."""
    names = [str(stage) for stage in (read_yaml(root / PIPELINE) or {}).get("stages", {})]
    if name is not None and name not in names:
        raise UserError(
            f"{option} {name}: there is no such stage{did_you_mean(name, names)}; known are {', '.join(names)}."
        )
