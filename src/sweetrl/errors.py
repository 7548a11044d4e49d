"""The exceptions of the project: what a user can put right, and what loses one dialogue and no more."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Bad input or a bad machine state that the user can fix; the message is one clear sentence.

    Command lines print it without a traceback and exit with status 1. State what is wrong, where (file, row, key)
    and what to do about it.
    """


class UnknownVersion(UserError):
    """The registry answers, and has no such model, version or alias."""


# The extras of the package, and what each installs that the core does without.
EXTRAS = {
    "pipeline": (
        *("boto3", "botocore", "dvc", "dvc_data", "fastapi", "great_expectations", "huggingface_hub", "mlflow"),
        *("networkx", "pandas", "prefect", "prometheus_client", "ruamel", "starlette", "uvicorn"),
    ),
    "report": ("jinja2", "matplotlib"),
    "gguf": ("gguf",),
    "quantization": ("bitsandbytes",),
    "vllm": ("vllm",),
    "ray": ("prefect_ray", "ray"),
    "verifiers": ("verifiers",),
    "openenv": ("openenv", "starlette", "uvicorn"),
    "trl": ("datasets", "trl"),
    "inspect": ("anyio", "inspect_ai"),
    "trackers": ("tensorboard", "trackio", "wandb"),
}


def missing_extra(error: ImportError) -> UserError | None:
    """Return the sentence for an import that failed because an extra is not installed, None for any other failure."""
    package = (error.name or "").partition(".")[0]
    for extra, packages in EXTRAS.items():
        if package in packages:
            return UserError(f"{package} is not installed; it comes with an extra: pip install 'sweetrl[{extra}]'.")
    return None


@contextmanager
def extras() -> Iterator[None]:
    """Turn an import that fails because an extra is not installed into a UserError that names the extra."""
    try:
        yield
    except ImportError as error:
        if missing := missing_extra(error):
            raise missing from error
        raise


# The errors of a full disk, and of a user's quota that is used up.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSALS = (errno.EACCES, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG)


def full_disk(path: object) -> UserError:
    """Return the sentence for a file that could not be written for lack of space."""
    where = f"{path}: " if path else ""
    return UserError(
        f"{where}no space left on the disk; free some and run the same command again (finished work is kept)."
    )


def refusal(error: OSError) -> UserError | None:
    """Return the sentence for what the system refuses and a user can put right, None for any other failure."""
    if error.errno in DISK_FULL:
        return full_disk(error.filename)
    if error.errno not in _REFUSALS:
        return None
    where = f"{error.filename}: " if error.filename else ""
    what = (error.strerror or "this cannot be read or written").lower()
    return UserError(f"{where}{what}; fix that and run the same command again.")


def sentence_of(error: BaseException) -> str | None:
    """Return in one sentence what a user can put right, None for any other failure."""
    sentence: Exception | None = error if isinstance(error, UserError) else None
    if isinstance(error, ImportError):
        sentence = missing_extra(error)
    if isinstance(error, OSError):
        sentence = refusal(error)
    return None if sentence is None else str(sentence)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return " (did you mean `x`?)" where one of the `choices` is much like `word`, else "".

    Of dotted words the last part may be enough: `candidates` for `rank.candidates`.
    """
    from difflib import get_close_matches

    words = list(choices)
    alike = get_close_matches(word, words, 1, 0.7) or [name for name in words if name.endswith(f".{word}")]
    return f" (did you mean `{alike[0]}`?)" if alike else ""


class EngineError(Exception):
    """One reply could not be had, and the message says why: this dialogue is lost, others go on."""


class NoRoom(EngineError):
    """The prompt leaves no room for a reply in the model's context; asking again changes nothing."""


class SimulatorError(Exception):
    """The user simulator cannot reply (a server failed, a recording ends): this dialogue is lost, others go on."""


class UserLeft(Exception):
    """The simulated user ends the dialogue without another word: the agent's last reply was its last."""
