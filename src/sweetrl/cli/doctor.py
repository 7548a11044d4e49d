"""`sweetrl doctor`: is this machine ready, and if not, what to do about it. Each check is one small function."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from sweetrl.browser import Renderer
from sweetrl.cli.check import GIB, Check, Status, rehearse
from sweetrl.config.settings import Settings, load_settings
from sweetrl.errors import UserError
from sweetrl.models.check import check_tokenizer, check_weights, is_trained
from sweetrl.text import without_login

# The large packages: how it stands where one is not there, and what brings it.
TOOLS: tuple[tuple[str, Status, str], ...] = (
    *((name, "fail", "sweetrl") for name in ("transformers", "peft")),
    *((name, "warn", "'sweetrl[pipeline]'") for name in ("dvc", "mlflow", "prefect", "great_expectations")),
)
LOCK = Path("requirements.lock")
USERS = 256  # tokens of what a user says, with the marks of a message
AGAIN = f"`make clean-environment environment`, or `pip install -r {LOCK}`"


def examine(*looks: Callable[[], Iterator[Check]]) -> list[Check]:
    """Run the checks `looks` (default: every one) in turn; one that fails to run is itself a finding."""
    checks: list[Check] = []
    for look in looks or (python, packages, git, machine, torch, memory, isolation, browser, services, project):
        try:
            checks.extend(look())
        except UserError as error:
            checks.append(Check(look.__name__, "fail", str(error)))
        except Exception as error:
            why, notes = f"{type(error).__name__}: {error}", " ".join(getattr(error, "__notes__", ()))
            checks.append(Check(look.__name__, "fail", why, notes or f"install again: {AGAIN}"))
    return checks


def python() -> Iterator[Check]:
    """The interpreter."""
    yield Check("python", "ok", f"{platform.python_version()} ({sys.executable})")


def packages() -> Iterator[Check]:
    """Whether the installed packages are the locked ones; without the lock, whether the large ones are there."""
    if not LOCK.exists():
        yield Check("packages", "warn", f"no {LOCK} in {Path.cwd()}", "run `sweetrl doctor` from the project's root")
        for name, status, package in TOOLS:
            have = _version(name)
            yield Check(name, "ok", have) if have else Check(name, status, "not installed", f"`pip install {package}`")
        return
    pins = read_lock(LOCK)
    other = {name: have for name in pins if (have := _version(name)) != pins[name]}
    if not other:
        yield Check("packages", "ok", f"all {len(pins)} as in {LOCK}")
        return
    shown = [f"{name} {have or 'missing'} (locked {pins[name]})" for name, have in other.items()][:3]
    seen = ", ".join(shown) + (f" and {len(other) - 3} more" if len(other) > 3 else "")
    yield Check("packages", "fail" if None in other.values() else "warn", seen, AGAIN)


def read_lock(path: Path) -> dict[str, str]:
    """Return name -> version of the pins that apply to this interpreter."""
    from packaging.requirements import Requirement

    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    pins = [Requirement(line) for line in lines if line]
    return {pin.name: next(iter(pin.specifier)).version for pin in pins if pin.marker is None or pin.marker.evaluate()}


def git() -> Iterator[Check]:
    """Git, and whether we stand in a repository: DVC and lineage need both."""
    import subprocess

    if shutil.which("git") is None:
        yield Check("git", "fail", "not on the PATH", "install git")
    elif subprocess.run(["git", "rev-parse", "--is-inside-work-tree"], capture_output=True, check=False).returncode:
        yield Check("git", "warn", "not in a repository", "clone the project: DVC and the lineage need its history")
    else:
        yield Check("git", "ok", "in a repository")


def machine() -> Iterator[Check]:
    """Memory, cores, and free space where we stand."""
    import psutil

    total, free = psutil.virtual_memory().total / GIB, shutil.disk_usage(Path.cwd()).free / GIB
    advice = "" if total >= 3.5 else "4 GiB are comfortable; smaller `collect.batch` and `evaluate.batch` need less"
    seen = f"{total:.1f} GiB memory, {os.cpu_count()} cores"
    yield Check("machine", "warn" if advice else "ok", seen, advice)
    status: Status = "ok" if free >= 5 else "warn" if free >= 1 else "fail"
    advice = "" if free >= 5 else "a run needs 1 GiB, several need more; `make clean` removes caches"
    yield Check("disk", status, f"{free:.1f} GiB free", advice)


def torch() -> Iterator[Check]:
    """torch loads, and what it computes on."""
    import torch as library

    seen = f"{library.__version__}, {library.get_num_threads()} threads, "
    if library.cuda.is_available():
        properties = library.cuda.get_device_properties(0)
        seen += f"{library.cuda.device_count()} x {properties.name} ({properties.total_memory / GIB:.0f} GiB)"
    else:
        seen += "no GPU (none is needed for the embedded run)"
    yield Check("torch", "ok", seen)


def memory(card: str = "") -> Iterator[Check]:
    """What training and sampling take of the GPU, or of the one that is named (lm.memory.CARDS)."""
    import torch as library

    from sweetrl.lm.memory import CARDS, Shape
    from sweetrl.models.load import context_limit, without_weights

    if card and card not in CARDS:
        raise UserError(f"--gpu {card}: known are {', '.join(CARDS)}.")
    if not card and not library.cuda.is_available():
        return
    room = CARDS[card] if card else library.cuda.get_device_properties(0).total_memory / GIB
    settings = _settings()
    lora = max((getattr(settings, name).lora for name in ("critic", "policy")), key=lambda lora: lora.rank)
    model, size = without_weights(settings.model.base), getattr(library, settings.model.dtype).itemsize
    rank, nf4 = lora.rank if settings.model.train == "lora" else 0, settings.model.quantization == "nf4"
    shape, agent = Shape.planned(model, size, rank, lora.target_modules, nf4), settings.agent
    dialogue = min(context_limit(model), agent.max_turns * (agent.reply_tokens + USERS))
    seen = shape.plan(room, settings.collect.batch, dialogue, settings.policy.gradient_checkpointing)
    advice = "take a larger GPU, `model.dtype: bfloat16`, or several with `model.sharding: fsdp2`"
    fits = "nothing is left" not in seen
    yield Check(f"memory of {card or 'the GPU'}", "ok" if fits else "warn", seen, "" if fits else advice)


def isolation() -> Iterator[Check]:
    """Which layers keep the candidates' programs in; the sandbox attacks itself at its start."""
    from sweetrl.sandbox.client import Sandbox
    from sweetrl.sandbox.limits import Job, Limits

    with Sandbox(Limits(), workers=1) as sandbox:
        outcome = sandbox.submit(Job(("def f(x):\n    return x + 1\n",), ("f(1)",))).result(timeout=60)
    if [call.kind for call in outcome.calls] != ["value"]:
        yield Check("isolation", "fail", f"an innocent program did not run: {outcome.calls}", "see docs/sandbox.md")
    elif "namespaces" not in outcome.isolation:
        advice = (
            "programs can read, write and reach nothing of this machine, but see by their paths which files exist, how "
            "large and whose they are, and have no folder to write to (those that need one fail); allow user "
            "namespaces to close that (docs/sandbox.md, Without namespaces)"
        )
        yield Check("isolation", "warn", outcome.isolation, advice)
    else:
        seen = "programs have a folder, /tmp and home of their own, and see no other files, processes or network"
        yield Check("isolation", "ok", f"{outcome.isolation}: {seen}")


def project() -> Iterator[Check]:
    """The parameters, the base model, and what a run of the project would come to, where we stand in one."""
    if not Path("params.yaml").exists():
        yield Check("project", "warn", f"no params.yaml in {Path.cwd()}", "run `sweetrl` from the project's root")
        return
    try:
        settings = load_settings()
    except UserError as error:
        yield Check("params.yaml", "fail", str(error), "docs/parameters.md explains every key")
        return
    yield Check("params.yaml", "ok", "every key is known")
    base = _base(settings.model.base)
    yield base
    trained = is_trained("models/policy")
    yield Check("policy", "ok", "models/policy" if trained else "not trained yet: `make run` or `sweetrl run`")
    if base.status == "ok":
        yield from rehearse(settings)


def _base(base: str) -> Check:
    folder = Path(base)
    if not folder.exists() and base.count("/") == 1 and not folder.parent.is_dir():
        return Check("base model", "ok", f"{base}, from the hub's cache")
    missing = [name for name in ("config.json", "tokenizer.json", "*.safetensors") if not any(folder.glob(name))]
    if missing:
        advice = "`git pull` or `make base-model`; or point `model.base` in params.yaml at another"
        return Check("base model", "fail", f"{base}: no {', '.join(missing)}", advice)
    try:
        check_weights(folder)
        check_tokenizer(folder)
    except UserError as error:
        return Check("base model", "fail", str(error), "docs/real-models.md says what a model's folder may hold")
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) / 2**20
    return Check("base model", "ok", f"{base}, {size:,.1f} MiB")


def browser() -> Iterator[Check]:
    """The browser of Frontend Design renders a page, and how it is kept in; the backend suite does without."""
    settings = _settings().browser.model_copy(update={"cache": "", "tabs": 1})
    try:
        with Renderer(settings) as renderer:
            page, isolated = renderer.render("<p>ready</p>"), renderer.isolated
    except UserError as error:
        yield Check("browser", "warn", "none for Frontend Design (Backend Programming needs none)", str(error))
        return
    if page.status != "ok" or [element.text for element in page.elements] != ["ready"]:
        seen = f"{page.renderer}: an innocent page came back `{page.status}`"
        yield Check("browser", "fail", seen, "see docs/browser.md")
    elif not isolated:
        advice = "pages are kept in by the browser's own sandbox only; allow user namespaces (docs/browser.md)"
        yield Check("browser", "warn", f"{page.renderer}, no namespaces", advice)
    else:
        yield Check("browser", "ok", f"{page.renderer}, namespaces")


def services() -> Iterator[Check]:
    """The servers that the environment points to answer; without any, everything is embedded."""
    import httpx

    for name, variable in (("mlflow server", "MLFLOW_TRACKING_URI"), ("prefect server", "PREFECT_API_URL")):
        address = os.environ.get(variable, "")
        if not address.startswith(("http://", "https://")):
            yield Check(name, "ok", f"embedded ({variable} names no server)")
            continue
        shown = without_login(address)
        try:
            httpx.get(f"{address.rstrip('/')}/health", timeout=3, follow_redirects=True).raise_for_status()
            yield Check(name, "ok", shown)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = f"status {error.response.status_code}" if isinstance(error, httpx.HTTPStatusError) else str(error)
            yield Check(name, "fail", f"{shown}: {why}", f"start the server, or run embedded: `unset {variable}`")


def _settings() -> Settings:
    """The project's settings, for other checks: what is wrong in params.yaml is reported once, by `project`."""
    try:
        return load_settings() if Path("params.yaml").exists() else Settings()
    except UserError:
        return Settings()


def _version(name: str) -> str | None:
    """The installed version without its local part (a CPU build of torch is `2.13.0+cpu`)."""
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None
