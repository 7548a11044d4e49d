"""`sweetrl export`: an agent as a folder that transformers, peft and the Hugging Face Hub read."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sweetrl.config.settings import Settings
from sweetrl.engines.chat import ChatFormat
from sweetrl.engines.transformers import load_model, stop_ids
from sweetrl.errors import UserError
from sweetrl.io import making_folder, read_json, usual_mode, write_json, write_text
from sweetrl.models.check import ADAPTER, is_full
from sweetrl.models.licences import is_own
from sweetrl.models.load import load_tokenizer, make_saveable
from sweetrl.serve.card import model_card
from sweetrl.serve.source import Handed, facts_of, fetch
from sweetrl.stages.standalone import check_free
from sweetrl.tracking.chat_agent import AgentConfig

# What agent.json has.
TALK = ("system_prompt", "max_turns", "max_new_tokens", "temperature", "top_p", "template_options", "thought_marks")


def export(reference: str, settings: Settings, out: Path, merge: bool = False) -> Handed:
    """Write the agent that `reference` names into the new folder `out`; return which it is.

    With `merge` base and adapter become one model, as full weights are one; without, the folder holds the adapter.
    Tokenizer with chat template, generation config, `agent.json` (how it talks) and the model card are in both. `out`
    appears complete or not at all.
    """
    with new_folder(out) as folder, tempfile.TemporaryDirectory(prefix="sweetrl-export-") as scratch:
        handed = fetch(reference, settings, Path(scratch))
        merge = merge or is_full(handed.adapter)
        facts = facts_of(handed, settings, Path(scratch))
        tokenizer = load_tokenizer(handed.base)
        tokenizer.save_pretrained(folder)
        _write_model(handed, tokenizer, folder, merge)
        write_json(folder / "agent.json", {key: value for key, value in asdict(handed.config).items() if key in TALK})
        write_text(folder / "README.md", model_card(handed, facts, merge))
        return handed


def push(folder: Path, hub_id: str, title: str) -> str:
    """Upload `folder` to the Hugging Face Hub as `hub_id`, private if new, by the client's token; return its page."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = api.create_repo(hub_id, private=True, exist_ok=True)
        api.upload_folder(repo_id=hub_id, folder_path=str(folder), commit_message=f"{title}, exported by sweetrl")
    except Exception as error:  # no token, no right, no network: the client has an exception for each
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{hub_id}: the Hub did not take the folder ({reason}); it is complete in {folder}, so log in with "
            "`hf auth login` or see to the network, then upload it with `hf upload`."
        ) from error
    return str(address)


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `out` that becomes `out` on success; one with files in it is a UserError."""
    check_free(out)
    with making_folder(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".part", dir=out.parent)
    with scratch as place:
        folder = Path(place) / out.name
        folder.mkdir()
        yield folder
        for path in folder.iterdir():  # weights are written for their owner alone
            path.chmod(usual_mode())
        folder.replace(out)


def _write_model(handed: Handed, tokenizer: Any, folder: Path, merge: bool) -> None:
    if merge:
        model = load_model(handed.base, handed.adapter, handed.config.dtype, "cpu")
        make_saveable(model.generation_config)
        if hasattr(model, "merge_and_unload"):  # in lower precisions the adapter stays beside the weights
            model = model.merge_and_unload()
        chat = ChatFormat(tokenizer, **handed.config.chat_options)
        # Every end that a reply of the agent can have: what plain `generate` needs to stop where the agent does.
        model.generation_config.eos_token_id = list(stop_ids(model, tokenizer, chat))
        model.generation_config.pad_token_id = tokenizer.pad_token_id
        model.save_pretrained(folder)
        return
    for path in handed.adapter.iterdir():
        if path.is_file() and path.name.startswith("adapter_"):
            shutil.copyfile(path, folder / path.name)
    write_json(folder / ADAPTER, read_json(folder / ADAPTER) | named_base(handed.config))
    source = Path(handed.base) / "generation_config.json"
    if is_own(source):
        shutil.copyfile(source, folder / source.name)


def named_base(config: AgentConfig) -> dict[str, str | None]:
    """Where peft's Auto classes find the base: on the hub in its revision, else in a folder from where one is.

    A folder's bare name, models/base, would be taken for a repository on the hub wherever there is no such folder.
    """
    if config.on_the_hub:
        return {"base_model_name_or_path": config.base, "revision": config.base_revision or None}
    path = Path(config.base)
    relative = not path.is_absolute() and path.parts[:1] != ("..",)
    return {"base_model_name_or_path": f"./{path}" if relative else str(path), "revision": None}
