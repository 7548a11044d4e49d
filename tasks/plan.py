"""What a run would do, and why: the stages that DVC finds changed, and those behind them. Nothing is changed for it.

Parameters may be other ones than those in params.yaml (`sweetrl run --dry-run --set ...`): what they would change is
told by comparing them with what dvc.lock has recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sweetrl.config.overrides import differences, value_of
from sweetrl.config.yaml_files import read_yaml
from sweetrl.errors import UserError, did_you_mean
from tasks.pipeline import PIPELINE, Selection, open_index

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
    import networkx
    from dvc.repo import lock_repo

    selection = selection or Selection()
    written = read_yaml(root / "params.yaml") or {}
    definitions = (read_yaml(root / PIPELINE) or {}).get("stages", {})
    planned: list[PlannedStage] = []
    makers: dict[str, str] = {}  # output -> the stage that would make it again
    with open_index(root) as (repo, index), lock_repo(repo):
        stages = list(networkx.dfs_postorder_nodes(index.graph))
        chosen = selection.of([str(stage.name) for stage in stages])
        for stage in stages:
            name = str(stage.name)
            raw = str(definitions.get(name, ""))
            why = list(_reasons(stage, written, tree, raw))
            behind = [] if stage.frozen else sorted({makers[str(dep)] for dep in stage.deps if str(dep) in makers})
            if name not in chosen:
                planned.append(PlannedStage(name, "left", tuple(why)))
                continue
            would: Would = "run" if why else "perhaps" if behind else "skip"
            if behind and not why:
                why = [f"if {' or '.join(behind)} makes something else"]
            planned.append(PlannedStage(name, would, tuple(why)))
            if would != "skip":
                makers |= {str(out): name for out in stage.outs}
    return planned


def _reasons(
    stage: Stage, written: Mapping[str, Any], tree: Mapping[str, Any] | None, definition: str
) -> Iterator[str]:
    """Why `stage` has changed since dvc.lock was written."""
    from dvc.dependency.param import ParamsDependency

    now = written if tree is None else tree
    changed = [key for key, _, _ in differences(written, now)]
    if stage.changed_stage() or any(f"${{{key}}}" in definition for key in changed):
        yield "its command, inputs or outputs are described otherwise in dvc.yaml"
    if not stage.frozen:
        for dep in stage.deps:
            if isinstance(dep, ParamsDependency):
                ours = str(dep) == "params.yaml"
                yield from _parameter_reasons(dep, now if ours else read_yaml(Path(dep.fs_path)) or {})
                continue
            for path, how in dep.status().items():
                yield f"input {path}: {_words(how)}"
    for out in stage.outs:
        for path, how in out.status().items():
            yield f"output {path}: {_words(how)}"


def _parameter_reasons(dep: Any, tree: Mapping[str, Any]) -> Iterator[str]:
    recorded = dep.hash_info.value if dep.hash_info else None
    if recorded is None:
        yield "it has never run here"
        return
    for key in dep.params:
        now = value_of(tree, key)
        if key not in recorded:
            yield f"parameter {key} is new"
            continue
        for name, before, after in differences({key: recorded[key]}, {key: now}):
            yield f"{name}: {_shown(before)} -> {_shown(after)}"


def _shown(value: Any) -> str:
    return "nothing" if value in (None, "") else str(value)


def _words(how: Any) -> str:
    """DVC's word for a state, or its words for the files of a folder."""
    words = {"deleted": "not there", "new": "never recorded", "not in cache": "not in DVC's cache"}
    return words.get(str(how), str(how)) if isinstance(how, str) else "modified"


def check_startable(root: Path, selection: Selection) -> None:
    """Raise a UserError where a stage in `selection` needs what a stage that is left out has not made yet."""
    if selection.begin is None:
        return
    import networkx

    with open_index(root) as (_, index):
        stages = list(networkx.dfs_postorder_nodes(index.graph))
        chosen = selection.of([str(stage.name) for stage in stages])
        made = {str(out): str(stage.name) for stage in stages if stage.name not in chosen for out in stage.outs}
        for stage in stages:
            missing = [dep for dep in stage.deps if stage.name in chosen and str(dep) in made and not dep.exists]
            if missing:
                path = str(missing[0])
                raise UserError(
                    f"--from {selection.begin}: {path}, which {stage.name} needs, is not there yet; run from "
                    f"{made[path]}, which makes it, or without --from."
                )


def stage_names(root: Path) -> list[str]:
    """Return the names of the stages in dvc.yaml, as they are written; nothing of DVC is imported for it."""
    return [str(name) for name in (read_yaml(root / PIPELINE) or {}).get("stages", {})]


def check_stage(root: Path, option: str, name: str | None) -> None:
    """Raise a UserError where `name`, given for `option`, is no stage."""
    known: Sequence[str] = stage_names(root)
    if name is not None and name not in known:
        raise UserError(
            f"{option} {name}: there is no such stage{did_you_mean(name, known)}; known are {', '.join(known)}."
        )
