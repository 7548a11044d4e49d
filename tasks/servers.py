"""One vLLM server for all stages of a pipeline run, where each would start its own (SWEETRL_ONE_SERVER=1).

It starts with the first stage that needs one and ends with the run. In between are the stages that train: the server
keeps its memory while they run, so it wants GPUs that they do not use. That is why it is asked for and not the rule.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from sweetrl.config.settings import Settings
from sweetrl.engines.make import lending, needs_server
from sweetrl.paths import SCRATCH
from sweetrl.stages.parameters import PARAMETERS

VARIABLE = "SWEETRL_ONE_SERVER"


class RunServer:
    """The server of a pipeline run in the project at `root`, if one is asked for. A context manager."""

    def __init__(self, settings: Settings, root: Path) -> None:
        self.settings, self.root = settings, root
        self._stack = ExitStack()
        self._lent: dict[str, str] | None = None

    def environment(self, stage: str) -> dict[str, str]:
        """Return the environment in which `stage` finds the server, which is started if need be; {} without one."""
        # The shares of a cluster run on machines from which it cannot be reached.
        wanted = os.environ.get(VARIABLE) == "1" and not os.environ.get("SWEETRL_RAY", "").strip()
        if not wanted or "engine" not in PARAMETERS.get(stage, ()) or not needs_server(self.settings.engine):
            return {}
        if self._lent is None:
            base = self.root / self.settings.model.base
            place = str(base) if base.is_dir() else self.settings.model.base
            model = self.settings.model.model_copy(update={"base": place})
            rank = max(one.lora.rank for one in self._trained())
            log = self.root / SCRATCH / "server.log"
            self._lent = self._stack.enter_context(lending(self.settings.engine, model, log, rank))
        return self._lent

    def _trained(self) -> tuple[Any, ...]:
        return (self.settings.policy, self.settings.multi_turn_dpo, self.settings.rft, self.settings.grpo)

    def __enter__(self) -> RunServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
