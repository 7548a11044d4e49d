"""vLLM on a GPU and float32: its kernels for adapters assert half precision, and its last words do not say so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sweetrl.config.settings import parse_settings
from sweetrl.engines.policy import watched
from sweetrl.errors import UserError


@pytest.mark.parametrize(
    ("dtype", "gpus", "named"), [("float32", 1, True), ("float32", 0, False), ("bfloat16", 1, False)]
)
def test_float32_is_named_where_a_server_on_a_gpu_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, gpus: int, named: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models/base").mkdir(parents=True)
    Path("models/base/config.json").write_text('{"model_type": "llama"}')
    monkeypatch.setattr("sweetrl.engines.vllm_server.gpus_of", lambda command: gpus)
    Path("server.py").write_text("raise SystemExit('Engine core initialization failed')")
    engine = {"kind": "vllm", "command": f"'{sys.executable}' server.py {{model}}", "start_seconds": 60.0}
    settings = parse_settings({"engine": engine, "model": {"dtype": dtype}})
    with pytest.raises(UserError) as caught, watched(settings.engine, settings.model, Path("stage.log")):
        pass
    assert "ended with status 1 before it answered: Engine core initialization failed" in str(caught.value)
    assert str(caught.value).endswith("only: set `model.dtype: bfloat16`.") == named
