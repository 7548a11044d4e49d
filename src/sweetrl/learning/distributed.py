"""The few things that several training processes do together; in a single process they do nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")


def _processes() -> int:
    import torch.distributed as distributed

    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def shared(compute: Callable[[], T]) -> T:
    """What `compute` returns in the first process, in all of them."""
    import torch.distributed as distributed

    if _processes() == 1:
        return compute()
    value: list[Any] = [compute() if distributed.get_rank() == 0 else None]
    distributed.broadcast_object_list(value, src=0)
    return value[0]


def gathered(value: T) -> list[T]:
    """Every process's `value`, in the order of the processes."""
    import torch.distributed as distributed

    if _processes() == 1:
        return [value]
    found: list[Any] = [None] * _processes()
    distributed.all_gather_object(found, value)
    return found


def add_gradients(model: nn.Module) -> None:
    """Add up the gradients of all processes, in one message; parameters that no loss reached get zeros."""
    import torch
    import torch.distributed as distributed

    if _processes() == 1:
        return
    trained = [one for one in model.parameters() if one.requires_grad]
    flat = torch.cat([(torch.zeros_like(one) if one.grad is None else one.grad).flatten() for one in trained])
    distributed.all_reduce(flat)
    for one, part in zip(trained, flat.split([one.numel() for one in trained]), strict=True):
        one.grad = part.view_as(one).clone()
