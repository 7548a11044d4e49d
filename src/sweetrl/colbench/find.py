"""Domains by name: those of the project, installed ones, your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweetrl.colbench.domain import Domain
from sweetrl.errors import UserError
from sweetrl.plugins import construct, find

if TYPE_CHECKING:
    from sweetrl.config.settings import DialogueSettings


def load_domain(settings: DialogueSettings) -> Domain:
    """Return the domain that `suite` names, with `settings`."""
    return find_domain(settings.suite).configured(settings)


def find_domain(name: str) -> Domain:
    """Return the domain called `name`, with its default settings; what is none is a UserError."""
    domain: Domain = construct(find("domains", name), "domains", name)
    if not callable(getattr(domain, "configured", None)):
        raise UserError(f"params.yaml: `suite: {name}` is no domain; it must be a subclass of sweetrl.Domain.")
    domain.spec = name
    return domain
