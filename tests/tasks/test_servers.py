"""One server for a pipeline run: started by the first stage that needs it, taken by the others, gone with the run."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

from sweetrl.config.settings import Settings, parse_settings
from sweetrl.engines.make import LENT, serving
from sweetrl.errors import UserError
from tasks.pipeline import StageResult
from tasks.servers import VARIABLE, RunServer
from tasks.training import Steps, run_pipeline

# A server of which nothing is asked but whether it is well.
SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *arguments): ...
print("started", flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings whose server is a small program, in the project's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEETRL_RAY", raising=False)
    Path("models/base").mkdir(parents=True)
    Path("models/base/config.json").write_text('{"model_type": "llama"}')
    Path("server.py").write_text(SERVER)
    engine = {"kind": "vllm", "command": f"'{sys.executable}' server.py {{model}}", "start_seconds": 60.0}
    return parse_settings({"engine": engine, "policy": {"lora": {"rank": 24}}})


def test_a_run_has_one_server_and_its_stages_find_it(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    log = Path(".scratch/server.log")
    with RunServer(settings, Path.cwd()) as server:
        assert server.environment("tasks") == server.environment("train-policy") == {} and not log.exists()
        lent = server.environment("collect")
        assert lent == server.environment("rank") == server.environment("evaluate") and lent.keys() == {LENT}
        with monkeypatch.context() as stage:
            for name, value in lent.items():
                stage.setenv(name, value)
            with serving(settings.engine, settings.model, Path("stage.log"), 24) as found:
                assert httpx.get(found.urls, trust_env=False).status_code == 200 and found.model == "base"
            assert httpx.get(found.urls, trust_env=False).status_code == 200, "it outlives the stage"
            assert not Path("stage.log").exists(), "the stage started none"
            other = settings.model.model_copy(update={"dtype": "bfloat16"})
            for model, rank in (
                (other, 24),
                (settings.model, 512),
            ):  # not this server's model, or more than it can load
                with serving(settings.engine, model, Path("stage.log"), rank) as own:
                    assert own.urls != found.urls
        assert log.read_text().count("started") == 1
    with pytest.raises(httpx.ConnectError):
        httpx.get(found.urls, trust_env=False)


def test_nobody_is_lent_what_was_not_asked_for(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    running = settings.engine.model_copy(update={"urls": "http://localhost:1/v1"})
    monkeypatch.delenv(VARIABLE, raising=False)
    with RunServer(settings, Path.cwd()) as server:
        assert server.environment("collect") == {}
    monkeypatch.setenv(VARIABLE, "1")
    for other in (Settings(), settings.model_copy(update={"engine": running})):
        with RunServer(other, Path.cwd()) as server:
            assert server.environment("collect") == {}
    monkeypatch.setenv("SWEETRL_RAY", "ray://elsewhere:1")
    with RunServer(settings, Path.cwd()) as server:
        assert server.environment("collect") == {}


def test_the_flow_hands_it_over(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    stages = ["tasks", "collect", "train-critic", "rank"]
    monkeypatch.setattr("tasks.training.load_settings", lambda path: settings)
    monkeypatch.setattr("tasks.training.stage_order", lambda root: stages)
    monkeypatch.setattr("tasks.training.changed_stages", lambda root, names=None: set(names or stages) - {"collect"})
    found: dict[str, str] = {}

    def run(stage: str, root: Path, env: dict[str, str]) -> StageResult:
        found[stage] = env.get(LENT, "")
        return StageResult(stage, "ran")

    run_pipeline(Path.cwd(), Steps(run=run, say=lambda line: None))
    assert found.keys() == {"tasks", "train-critic", "rank"}
    assert not found["tasks"] and not found["train-critic"] and "127.0.0.1" in found["rank"]


@pytest.mark.parametrize(
    ("dtype", "gpus", "told"), [("float32", 1, True), ("float32", 0, False), ("bfloat16", 1, False)]
)
def test_float32_is_named_where_a_server_on_a_gpu_cannot_start(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, dtype: str, gpus: int, told: bool
) -> None:
    """vLLM's kernels for adapters assert half precision, and its last words do not say so."""
    monkeypatch.setattr("sweetrl.engines.vllm_server.gpus_of", lambda command: gpus)
    Path("server.py").write_text("raise SystemExit('Engine core initialization failed')")
    with (
        pytest.raises(UserError) as caught,
        serving(settings.engine, settings.model.model_copy(update={"dtype": dtype}), Path("stage.log")),
    ):
        pass
    assert "ended with status 1 before it answered: Engine core initialization failed" in str(caught.value)
    assert str(caught.value).endswith("only: set `model.dtype: bfloat16`.") == told
