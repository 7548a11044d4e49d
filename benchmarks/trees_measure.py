"""How benchmarks/trees.py measures: a fresh model for each job, seconds, peak memory, and the ceiling of a machine."""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from typing import Any

from trees_data import LORA, SHAPES
from trees_peers import Unavailable


def on_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def make_model(options: argparse.Namespace, moved: bool = False) -> Any:
    """A Llama with random weights and a LoRA adapter: a fresh one, or with `moved` one that changes the model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sweetrl.lm.adapters import attach_adapter

    torch.set_num_threads(options.threads)
    device = torch.device("cuda" if on_cuda() else "cpu")
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPES[options.shape], max_position_embeddings=32768, pad_token_id=0)
    torch.set_default_dtype(torch.bfloat16 if options.shape == "llama-8b" else torch.float32)
    with device:
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model = attach_adapter(model.requires_grad_(False), LORA, seed=0)
    if moved:
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.data.normal_(std=0.02)
    return model


def measure(
    options: argparse.Namespace,
    job: Callable[..., dict[str, Any]],
    *given: Any,
    moved: bool = False,
    warm: tuple[Any, ...] | None = None,
) -> dict[str, Any]:
    """Run `job(model, *given)`; add its seconds and its peak memory above the model's.

    What `job` itself says of these counts. Unavailable if it says that. On a CUDA device `job(model, *warm)` runs
    before it, with a model of its own.
    """
    if not on_cuda():
        return own_process(options, job, *given, moved=moved)
    import gc

    import torch

    for arguments in ([] if warm is None else [warm]) + [given]:
        gc.collect()
        torch.cuda.empty_cache()
        model = make_model(options, moved)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        try:
            numbers = job(model, *arguments)
        except torch.cuda.OutOfMemoryError as error:
            raise Unavailable(str(error).splitlines()[0]) from error
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        peak = (torch.cuda.max_memory_allocated() - before) / 2**20
        del model
    return {"seconds": seconds, "cost": seconds, "peak_mib": peak, "model_mib": before / 2**20} | numbers


def own_process(
    options: argparse.Namespace, job: Callable[..., dict[str, Any]], *given: Any, moved: bool = False
) -> dict[str, Any]:
    """`measure` on a CPU: in a forked process, whose peak memory is the job's."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    def run() -> None:
        model = make_model(options, moved)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        wall, processor = time.perf_counter(), time.process_time()
        try:
            numbers = job(model, *given)
        except Unavailable as reason:
            send.send(reason)
            return
        seconds, spent = time.perf_counter() - wall, time.process_time() - processor
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
        times = {"seconds": seconds, "processor_seconds": spent, "cost": spent}
        send.send(times | {"peak_mib": peak} | numbers)

    process = context.Process(target=run)
    process.start()
    send.close()
    try:
        result = receive.recv()
    finally:
        process.join()
    if isinstance(result, Unavailable):
        raise result
    return result


def matrix_products(model: Any) -> dict[str, Any]:
    """The ceiling: floating-point operations a second (of processor time on a CPU) of large products in this dtype."""
    import torch

    device, dtype = next(model.parameters()).device, next(model.get_base_model().parameters()).dtype
    size, times = (8192, 20) if device.type == "cuda" else (2048, 3)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    for count in (1, times):  # once to warm up
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = clock()
        for _ in range(count):
            torch.mm(left, right)
        if device.type == "cuda":
            torch.cuda.synchronize()
        spent = clock() - start
    return {"flops": times * 2.0 * size**3 / spent}
