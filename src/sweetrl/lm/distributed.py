"""The few things that several training processes do together; in a single process they do nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from sweetrl.errors import UserError
from sweetrl.lm.head import base_of, transformer_of

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")


def process_rank_and_count() -> tuple[int, int]:
    """This process's number among those that train together, and how many they are."""
    import torch.distributed as distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def patient_group() -> Any:
    """All processes once more, for waits that may take hours: the usual group gives up after half an hour."""
    import torch.distributed as distributed

    return distributed.new_group(timeout=timedelta(days=30)) if process_rank_and_count()[1] > 1 else None


def broadcast(compute: Callable[[], T], group: Any = None) -> T:
    """What `compute` returns in the first process, in all of them; by default in their usual group."""
    import torch.distributed as distributed

    if process_rank_and_count()[1] == 1:
        return compute()
    value: list[Any] = [compute() if distributed.get_rank() == 0 else None]
    distributed.broadcast_object_list(value, src=0, group=group)
    return value[0]


def all_gather(value: T) -> list[T]:
    """Every process's `value`, in the order of the processes."""
    import torch.distributed as distributed

    if process_rank_and_count()[1] == 1:
        return [value]
    values: list[Any] = [None] * process_rank_and_count()[1]
    distributed.all_gather_object(values, value)
    return values


def add_gradients(model: nn.Module) -> None:
    """Add up the gradients of all processes, in one message; parameters that no loss reached get zeros."""
    import torch
    import torch.distributed as distributed

    if process_rank_and_count()[1] == 1:
        return
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    grads = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in trained]
    flat = torch.cat([grad.flatten() for grad in grads])
    distributed.all_reduce(flat)
    for weight, part in zip(trained, flat.split([weight.numel() for weight in trained]), strict=True):
        weight.grad = part.view_as(weight).clone()


def wants_shards() -> bool:
    """Whether the base is to be sharded: `accelerate launch --use_fsdp`, or torchrun with ACCELERATE_USE_FSDP=true."""
    return os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true" and int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_sharded(model: nn.Module) -> bool:
    """Whether a model's layers have been sharded, so that all processes must make equally many passes."""
    from torch.distributed.fsdp import FSDPModule

    return isinstance(transformer_of(model), FSDPModule)


def shard_layers(model: nn.Module, device: Any) -> None:
    """Shard the frozen base over all processes with FSDP2: each keeps its share of every layer and gathers the rest.

    A layer's weights are whole only while it computes. The adapter (a few megabytes), embeddings and the head stay
    whole in every process: their gradients, optimiser, checkpoints and chunked log-probs are those of a single process.
    The model may be on the CPU: a layer at a time goes to `device`. All processes must then make equally many passes.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # accelerate would shard what is sharded already, optimiser and adapter included; on a CPU it ignores the request.
    os.environ["ACCELERATE_USE_FSDP"] = "false"
    mesh = init_device_mesh(device.type, (process_rank_and_count()[1],))
    transformer = transformer_of(model)
    kinds = base_of(model)._no_split_modules or ()
    layers = [module for module in transformer.modules() if type(module).__name__ in kinds]
    if not layers:
        raise UserError(
            f"{base_of(model).config.model_type}: the model does not say what its layers are, so it cannot be sharded; "
            "start without FSDP."
        )
    within = {parameter for layer in layers for parameter in layer.parameters() if not parameter.requires_grad}
    kept_whole = set(model.parameters()) - within
    for layer in layers:
        fully_shard(layer, mesh=mesh, ignored_params=kept_whole)
    # Orders the layers' gathering; has no weights itself.
    fully_shard(transformer, mesh=mesh, ignored_params=kept_whole)
    for weight in kept_whole:
        weight.data = weight.data.to(device)
