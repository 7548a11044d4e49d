"""Two processes on the CPU (gloo) against one, with and without FSDP2: the same loss curve and the same weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, os, random, sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sweetrl.lm.adapters import attach_adapter
from sweetrl.lm.data import PreferenceData, Row
from sweetrl.lm.distributed import all_gather
from sweetrl.sweet.trainer import CriticTrainer, PolicyTrainer
from sweetrl.config.settings import CriticSettings, LoraSettings, PolicySettings

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
common = dict(learning_rate=1e-2, epochs=2, batch_size=8, micro_batch_size=2, checkpoints=2, lora=LoraSettings(rank=4))
result = {}
runs = [("critic", {}), ("policy", {})]
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    # So few tokens a pass that processes have unequal numbers of passes.
    runs += [("critic-sharded", {"tokens": 90}), ("policy-sharded", {"tokens": 50, "gradient_checkpointing": True})]
for name, more in runs:
    kind, _, sharded = name.partition("-")
    os.environ["ACCELERATE_USE_FSDP"] = str(bool(sharded)).lower()  # what `accelerate launch --use_fsdp` sets
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, initializer_range=0.3, pad_token_id=0,
    )
    model = attach_adapter(LlamaForCausalLM(config).requires_grad_(False), common["lora"], seed=0)
    options = common | more
    if kind == "critic":
        trainer = CriticTrainer(model, data, CriticSettings(beta=1.0, **options), out / name, 0)
    else:
        settings = PolicySettings(beta=1.0, sft_replay=0.3, **options)
        trainer = PolicyTrainer(model, data, settings, out / name, 0, replay=0.3)
    idle, make = [0], trainer.make_micro_batches
    def counted(step):
        made = make(step)
        idle[0] += sum("idle" in one for one in made)
        return made
    trainer.make_micro_batches = counted
    history = trainer.fit()
    weights = [value.double().abs().sum().item() for key, value in model.state_dict().items() if "lora_" in key]
    held, all_of_them = 0, 0
    for key, value in model.named_parameters():
        if ".layers." in key and "lora_" not in key:
            all_of_them += value.numel()
            held += value.to_local().numel() if sharded else value.numel()
    idle = sum(one[0] for one in all_gather(idle))
    result[name] = {"history": history, "weights": weights, "held": held / all_of_them, "idle": idle}
    result[name]["processes"] = trainer.args.world_size
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
    for name in ("critic-sharded", "policy-sharded"):
        assert results[1][name]["held"] == 0.5  # of the frozen layers' weights
    assert results[1]["policy-sharded"]["idle"] > 0
    for kind in ("critic", "policy", "critic-sharded", "policy-sharded"):
        single, double = results[0][kind.partition("-")[0]], results[1][kind]
        assert (single["processes"], double["processes"]) == (1, 2)
        assert len(single["history"]) == len(double["history"]) == 6
        for name in ("loss", "grad_norm", "learning_rate", "accuracy", "loss/preference", "loss/nll", "reward/margin"):
            curves = [[entry[name] for entry in history] for history in (single["history"], double["history"])]
            if name == "accuracy":  # until the first update margins are zero, and their signs rounding errors
                curves = [curve[2:] for curve in curves]
            assert curves[1] == pytest.approx(curves[0], rel=1e-5, abs=1e-5), (kind, name)
        assert double["weights"] == pytest.approx(single["weights"], rel=1e-5)
        assert single["history"][0]["loss"] != pytest.approx(single["history"][-1]["loss"], abs=1e-3)


WAITING = """
import datetime, sys, time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sweetrl.lm.adapters import attach_adapter
from sweetrl.lm.data import Row
from sweetrl.methods.credit import Attempts
from sweetrl.methods.grpo_trainer import GroupTrainer
from sweetrl.config.settings import GrpoSettings, LoraSettings

torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=3))  # in place of half an hour
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0
)
lora = LoraSettings(rank=4)
model = attach_adapter(LlamaForCausalLM(config).requires_grad_(False), lora, seed=0)

def sample(iteration, policy):
    time.sleep(6)
    rows = tuple(Row((1, 2, 3, 4 + number, 5), ((2, 5),)) for number in range(4))
    return Attempts(rows, ((1.0,), (-1.0,)) * 2, (0, 0, 1, 1))

settings = GrpoSettings(iterations=1, tasks=2, group_size=2, batch_size=2, micro_batch_size=2, lora=lora)
history = GroupTrainer(model, sample, settings, Path(sys.argv[1]), 0).fit()
assert len(history) == 2
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_wait_for_the_one_that_samples_however_long_it_takes(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WAITING)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [*launcher, str(program), str(tmp_path / "scratch")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
