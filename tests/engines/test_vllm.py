"""vLLM's protocol against a fake that speaks it: ids in and out, adapters that come and go, what faults mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweetrl.config.settings import ServerSettings
from sweetrl.engines.vllm import VllmEngine, adapter_name
from sweetrl.errors import EngineError, NoRoom, UserError
from sweetrl.types import Prompt, Sampling
from tests.fake_server import sample

SAMPLING = Sampling(max_new_tokens=64)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    return folder


def make_engine(tokenizer: Any, *urls: str, adapter: Path | None = None, model: str = "") -> VllmEngine:
    settings = ServerSettings(urls=" ".join(urls), model=model, timeout_seconds=60.0, attempts=6, backoff_seconds=0.01)
    return VllmEngine(settings, tokenizer, adapter)


def test_ids_go_in_and_come_out(fake_server: Any, tokenizer: Any) -> None:
    with fake_server(tokenizer=tokenizer) as server:
        engine = make_engine(tokenizer, server.url)
        sampling = Sampling(64, temperature=0.7, top_p=0.9, n=2, stop_ids=(500,))
        ((first, second),) = sample(engine, [Prompt((7, 8, 9), 2**62 + 1)], sampling)
        engine.close()
    (body,) = server.bodies
    assert (body["model"], body["prompt"], body["seed"], body["n"]) == ("base", [7, 8, 9], 2**62 + 1, 2)
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.7, 0.9, 64)
    assert {engine.chat.end_of_turn, 500} <= set(body["stop_token_ids"])
    assert engine.context == 2048
    assert first.finish_reason == "stop" and first.token_ids[-1] == engine.chat.end_of_turn
    assert first.text == tokenizer.decode(first.token_ids[:-1]) and first.text.startswith("Question")
    assert len(first.logprobs) == len(first.token_ids) and first.text != second.text
    assert (first.prompt_tokens, second.prompt_tokens) == (3, 0)
    usage = engine.usage()
    assert (usage.prompt_tokens, usage.generated_tokens) == (3, len(first.token_ids) + len(second.token_ids))


def test_a_reply_cut_by_the_limit_keeps_all_its_ids(fake_server: Any, tokenizer: Any) -> None:
    with fake_server(tokenizer=tokenizer) as server:
        engine = make_engine(tokenizer, server.url)
        ((completion,),) = sample(engine, [Prompt((7,), 1)], Sampling(3))
        engine.close()
    assert (len(completion.token_ids), completion.finish_reason) == (3, "length")
    assert completion.text == tokenizer.decode(completion.token_ids)


def test_the_context_limits_the_reply(fake_server: Any, tokenizer: Any) -> None:
    with fake_server(tokenizer=tokenizer, context=70) as server:
        engine = make_engine(tokenizer, server.url)
        ((short,),) = sample(engine, [Prompt((7,) * 66, 1)], SAMPLING)
        assert len(short.token_ids) == 4
        with pytest.raises(NoRoom):
            sample(engine, [Prompt((7,) * 70, 1)], SAMPLING)
        engine.close()
    assert [body["max_tokens"] for body in server.bodies] == [4]
    with fake_server(tokenizer=tokenizer) as long, fake_server(tokenizer=tokenizer, context=70) as small:
        engine = make_engine(tokenizer, server.url, long.url, small.url)  # the first has gone
        assert engine.context == 70
        engine.close()
    assert issubclass(NoRoom, EngineError)


def test_ids_that_the_base_does_not_have_end_everything_and_odd_log_probs_cost_an_attempt(
    fake_server: Any, tokenizer: Any
) -> None:
    with fake_server(tokenizer=tokenizer) as server:
        complete, odd = server._completions, [10**400, True, float("inf")]

        def completions(body: dict[str, Any]) -> tuple[int, Any]:
            status, reply = complete(body)
            if odd:
                reply["choices"][0]["logprobs"]["token_logprobs"][0] = odd.pop()
            return status, reply

        server._completions = completions
        engine = make_engine(tokenizer, server.url)
        ((completion,),) = sample(engine, [Prompt((7,), 1)], SAMPLING)
        assert not odd and engine.usage().retries == 3
        engine.vocabulary = max(completion.token_ids)
        with pytest.raises(UserError, match=r"the token id \d+, and model\.base has only \d+: another model is served"):
            sample(engine, [Prompt((7,), 1)], SAMPLING)
        engine.close()


def test_an_adapter_is_loaded_once_and_unloaded_at_the_end(fake_server: Any, tokenizer: Any, adapter: Path) -> None:
    with fake_server(tokenizer=tokenizer) as first, fake_server(tokenizer=tokenizer) as second:
        engine = make_engine(tokenizer, first.url, second.url, adapter=adapter)
        sample(engine, [Prompt((7, seed), seed) for seed in range(10)], SAMPLING)
        for server in (first, second):
            assert server.adapters == {adapter_name(adapter): str(adapter.resolve())}
            assert server.seen["load_lora_adapter"] == 1
            assert {body["model"] for body in server.bodies} == {adapter_name(adapter)}
        engine.close()
        assert first.adapters == second.adapters == {}


def test_a_server_that_was_started_again_gets_the_adapter_again(
    fake_server: Any, tokenizer: Any, adapter: Path
) -> None:
    with fake_server(tokenizer=tokenizer) as server:
        engine = make_engine(tokenizer, server.url, adapter=adapter)
        before = sample(engine, [Prompt((7,), 1)], SAMPLING)
        server.scripted = ["restart"]
        assert sample(engine, [Prompt((7,), 1)], SAMPLING) == before
        assert server.seen["load_lora_adapter"] == 2
        server.adapters["another"] = server.adapters.pop(adapter_name(adapter))
        assert sample(engine, [Prompt((7,), 1)], SAMPLING) == before
        engine.close()


def test_an_adapter_that_somebody_else_has_loaded_is_used(fake_server: Any, tokenizer: Any, adapter: Path) -> None:
    with fake_server(tokenizer=tokenizer, adapters={adapter_name(adapter): "x"}) as server:
        engine = make_engine(tokenizer, server.url, adapter=adapter)
        sample(engine, [Prompt((7,), 1)], SAMPLING)
        engine.close()


def test_the_name_of_an_adapter_says_what_is_in_it(adapter: Path, tmp_path: Path) -> None:
    first = adapter_name(adapter)
    assert first.startswith("policy-") and adapter_name(adapter) == first
    (adapter / "adapter_model.safetensors").write_bytes(b"others")
    assert adapter_name(adapter) != first
    with pytest.raises(UserError, match=r"adapter_config\.json"):
        adapter_name(tmp_path)


def test_what_the_user_must_fix_is_one_sentence(fake_server: Any, tokenizer: Any, adapter: Path) -> None:
    with pytest.raises(UserError, match="`urls` is empty"):
        make_engine(tokenizer)
    with fake_server(tokenizer=tokenizer) as server:
        with pytest.raises(UserError, match="there is no model 'large'; the server has base"):
            make_engine(tokenizer, server.url, model="large")
        server._adapter = lambda path, body: (404, {"detail": "Not Found"})
        engine = make_engine(tokenizer, server.url, adapter=adapter)
        with pytest.raises(UserError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"):
            sample(engine, [Prompt((7,), 1)], SAMPLING)
        engine.close()
        server._adapter = lambda path, body: (500, {"error": {"message": "LoRA rank 64 is greater than 16"}})
        engine = make_engine(tokenizer, server.url, adapter=adapter)
        with pytest.raises(UserError, match="rank 64 is greater"):
            sample(engine, [Prompt((7,), 1)], SAMPLING)
        engine.close()
    with pytest.raises(UserError, match=r"the connection failed.*; start the server or fix its address"):
        make_engine(tokenizer, server.url)
