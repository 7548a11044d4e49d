"""Two processes on the CPU (gloo) against one: the same loss curve and the same weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, random, sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sweetrl.learning.adapters import attach_adapter
from sweetrl.learning.batches import PreferenceData, Row
from sweetrl.learning.trainers import CriticTrainer, PolicyTrainer
from sweetrl.settings import CriticSettings, LoraSettings, PolicySettings

out = Path(sys.argv[1])
chance = random.Random(0)
some = lambda count: [chance.randrange(64) for _ in range(count)]
rows, pairs, groups = [], [], []
for task in range(4):
    request = some(12)
    for attempt in range(4):
        ids, spans = list(request), []
        for _ in range(chance.randint(1, 3)):
            reply = some(chance.randint(2, 9))
            spans.append((len(ids), len(ids) + len(reply)))
            ids += reply + some(3)
        rows.append(Row(tuple(ids), tuple(spans)))
        groups.append(task)
    pairs += [(4 * task + i, 4 * task + j) for i in range(4) for j in range(i + 1, 4)]
data = PreferenceData(tuple(rows), tuple(pairs), (0, 5, 10), tuple(groups))
torch.set_num_threads(1)
common = dict(learning_rate=1e-2, epochs=2, batch_size=8, micro_batch=2, checkpoints=2, lora=LoraSettings(rank=4))
result = {}
for kind in ("critic", "policy"):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, initializer_range=0.3, pad_token_id=0,
    )
    model = attach_adapter(LlamaForCausalLM(config).requires_grad_(False), common["lora"], seed=0)
    if kind == "critic":
        trainer = CriticTrainer(model, data, CriticSettings(beta=1.0, **common), out / kind, 0)
    else:
        settings = PolicySettings(beta=1.0, anchors=0.3, **common)
        trainer = PolicyTrainer(model, data, settings, out / kind, 0, anchors=0.3)
    history = trainer.fit()
    weights = [value.double().abs().sum().item() for name, value in model.state_dict().items() if "lora_" in name]
    result[kind] = {"history": history, "weights": weights, "processes": trainer.args.world_size}
if trainer.args.process_index == 0:
    (out / "result.json").write_text(json.dumps(result))
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    results = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        out.mkdir()
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, *(launcher if processes > 1 else []), str(program), str(out)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        results.append(json.loads((out / "result.json").read_text()))
    for kind in ("critic", "policy"):
        one, two = results[0][kind], results[1][kind]
        assert (one["processes"], two["processes"]) == (1, 2)
        assert len(one["history"]) == len(two["history"]) == 6
        for name in ("loss", "grad_norm", "learning_rate", "accuracy", "loss/preference", "loss/nll", "reward/margin"):
            curves = [[entry[name] for entry in history] for history in (one["history"], two["history"])]
            assert curves[1] == pytest.approx(curves[0], rel=1e-5, abs=1e-5), (kind, name)
        assert two["weights"] == pytest.approx(one["weights"], rel=1e-5)
        assert one["history"][0]["loss"] != pytest.approx(one["history"][-1]["loss"], abs=1e-3)
