"""The house's rules that a machine can check: arrows, sizes, imports, the lock, and that the README tells the truth."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def tracked(*patterns: str) -> list[Path]:
    """The project's files by git, or by the file system where there is no git (an image, an archive)."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if listed.returncode == 0 and listed.stdout:
        found = [REPOSITORY / line for line in listed.stdout.splitlines()]
        return [path for path in found if path.is_file()]
    roots = ("src", "flows", "tasks", "tests", "benchmarks", "docs")
    return [path for root in roots for pattern in patterns for path in (REPOSITORY / root).rglob(Path(pattern).name)]


def test_the_import_contracts_hold():
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


def test_help_imports_nothing_heavy():
    """`sweetrl --help` in a third of a second: typer and rich, and not even pydantic."""
    code = (
        "import sys; from typer.testing import CliRunner; from sweetrl.cli import app; "
        "result = CliRunner().invoke(app, ['--help']); assert result.exit_code == 0, result.output; "
        f"print(*sorted(set(sys.modules) & {set(HEAVY) | {'pydantic', 'numpy', 'httpx', 'sweetrl.settings'}}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    "path", tracked("src/*.py", "flows/*.py", "tasks/*.py"), ids=lambda path: path.relative_to(REPOSITORY).as_posix()
)
def test_heavy_libraries_are_imported_inside_functions(path: Path):
    """At the top of a module they would be paid for by everybody who imports it."""
    # Loaded by MLflow itself, or derived from a library's classes: imported only by those who have paid already.
    excused = {
        "src/sweetrl/tracking/agent.py": {"mlflow"},
        "src/sweetrl/learning/trainers.py": {"torch", "transformers"},
        "src/sweetrl/learning/online.py": {"torch", "transformers"},
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


def test_no_file_grows_past_one_sitting():
    tables = {"tests/hostile/attacks.py"}  # looked up, not read
    sizes = {path.relative_to(REPOSITORY).as_posix(): len(path.read_text().splitlines()) for path in tracked("*.py")}
    assert not {name: size for name, size in sizes.items() if size > LINES and name not in tables}


def test_every_module_says_what_it_is_for():
    silent = [
        path.relative_to(REPOSITORY).as_posix()
        for path in tracked("src/*.py", "flows/*.py", "tasks/*.py", "benchmarks/*.py")
        if path.stat().st_size and ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None
    ]
    assert not silent


def test_the_lock_is_plain_pins_in_order():
    lines = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8").splitlines()
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+( ; [^#@/]+)?", line), line
    assert lines == sorted(lines, key=str.lower)
    assert not any(line.startswith("sweetrl") for line in lines)


def test_the_lock_holds_every_dependency_of_the_project():
    import tomllib

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    from sweetrl.doctor import read_lock

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = {canonicalize_name(name): version for name, version in read_lock(REPOSITORY / "requirements.lock").items()}
    for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        wanted = Requirement(text)
        assert canonicalize_name(wanted.name) in pins, text
        assert wanted.specifier.contains(pins[canonicalize_name(wanted.name)], prereleases=True), text


def guides() -> list[Path]:
    return [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", guides(), ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_the_commands_that_guides_name_exist(page: Path):
    from typer.main import get_command

    from sweetrl.cli import app

    text = page.read_text(encoding="utf-8")
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for name in re.findall(r"`(?:uv run )?sweetrl ([a-z]+)\b", text) + re.findall(
        r"^\s*\$? ?sweetrl ([a-z]+)\b", text, re.M
    ):
        assert name in commands, f"{page.name}: sweetrl {name}"
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.M))
    for name in re.findall(r"`make ([a-z-]+)", text) + re.findall(r"^\s*\$? ?make ([a-z-]+)", text, re.M):
        assert name in targets, f"{page.name}: make {name}"
    for module in re.findall(r"python -m ((?:sweetrl|flows|tasks|benchmarks)[\w.]*\w)\b(?!\.<)", text):
        path = module.replace(".", "/")
        places = [REPOSITORY / root / f"{path}{end}" for root in ("src", ".") for end in (".py", "/__main__.py")]
        assert any(place.exists() for place in places), f"{page.name}: python -m {module}"


@pytest.mark.parametrize("page", guides(), ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_links_between_pages_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_opens_with_the_two_commands():
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(make [a-z-]+)", text, re.M)
    assert commands[:2] == ["make run", "make test"]
