"""Log-probs of sequences by vLLM's prompt_logprobs, with and without an adapter; run by benchmarks/trees.py --vllm.

    PYTHON benchmarks/trees_vllm.py JOB OUT        in vLLM's own environment: it imports nothing of the project

JOB is a JSON file with `model`, `dtype`, `adapter`, `rank`, `context` and `sequences`, each {"ids", "start"}. OUT gets
the processor seconds of vLLM's processes (start-up left out), and for each sequence the sum over its tokens from
`start` of the log-probs with minus those without the adapter.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def spent() -> tuple[float, float]:
    """Processor seconds and resident MiB of this process and all it has started."""
    import psutil

    own = psutil.Process()
    seconds = memory = 0.0
    for process in (own, *own.children(recursive=True)):
        times = process.cpu_times()
        seconds += times.user + times.system
        memory += process.memory_info().rss / 2**20
    return seconds, memory


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    import vllm
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    engine = LLM(
        model=job["model"],
        skip_tokenizer_init=True,
        dtype=job["dtype"],
        enable_lora=True,
        max_lora_rank=job["rank"],
        max_model_len=job["context"],
        max_num_batched_tokens=job["context"],
        enable_chunked_prefill=False,
        enforce_eager=True,
        seed=0,
    )
    # One token has to be sampled; its cost is that of one more position.
    sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1, detokenize=False)
    adapter = LoRARequest("adapter", 1, job["adapter"])
    replies = [(sequence["ids"], sequence["start"]) for sequence in job["sequences"]]
    prompts = [{"prompt_token_ids": ids} for ids, _ in replies]

    def sums(lora: LoRARequest | None) -> list[float]:
        outputs = engine.generate(prompts, sampling, lora_request=lora, use_tqdm=False)
        return [
            sum(given[token].logprob for token, given in zip(ids[start:], output.prompt_logprobs[start:], strict=True))
            for (ids, start), output in zip(replies, outputs, strict=True)
        ]

    for lora in (adapter, None):
        engine.generate([{"prompt_token_ids": list(range(10, 40))}], sampling, lora_request=lora, use_tqdm=False)
    (before, resting), start = spent(), time.perf_counter()
    differences = [tuned - base for tuned, base in zip(sums(adapter), sums(None), strict=True)]
    wall, (after, busy) = time.perf_counter() - start, spent()
    result = {"version": vllm.__version__, "seconds": wall, "processor_seconds": after - before, "sums": differences}
    Path(sys.argv[2]).write_text(json.dumps(result | {"peak_mib": busy - resting}))


if __name__ == "__main__":
    main()
