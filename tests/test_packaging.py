"""The wheel: all of src/ with its data files, nothing else of the repository, and the extras of pyproject.toml."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def sources() -> set[str]:
    """The files of src/ by git, or by the file system where there is no git; paths from the repository's root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "src"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        return {name for name in listed.stdout.splitlines() if (REPOSITORY / name).is_file()}
    paths = (path for path in (REPOSITORY / "src").rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(REPOSITORY).as_posix() for path in paths if ".egg-info" not in path.as_posix()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of a copy of the tree; without a network, by the environment's own setuptools."""
    folder = tmp_path_factory.mktemp("wheel")
    # Code that belongs to the repository alone lies beside the package, as in a clone.
    others = [
        path.relative_to(REPOSITORY).as_posix()
        for name in ("flows", "tasks")
        for path in REPOSITORY.glob(f"{name}/*.py")
    ]
    for name in {"pyproject.toml", "README.md", "LICENSE", *others, *sources()}:
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPOSITORY / name, folder / "tree" / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder]
    done = subprocess.run([*command, "./tree"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_has_the_packages_with_every_file_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == {name.removeprefix("src/") for name in sources()}
    assert {name.partition("/")[0] for name in names} == {"sweetrl", "sweetrl_verifiers"}
    for some in ("prompts/judge.txt", "evaluation/templates/style.css", "reproduce/templates/report.html", "py.typed"):
        assert f"sweetrl/{some}" in names
    assert all(wheel.getinfo(name).file_size == (REPOSITORY / "src" / name).stat().st_size for name in names)


def test_the_metadata_name_the_extras_the_licence_and_the_program(wheel: zipfile.ZipFile) -> None:
    def read(name: str) -> str:
        return wheel.read(next(path for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))).decode()

    metadata = Parser().parsestr(read("METADATA"))
    assert metadata["Version"] == PROJECT["version"]
    assert set(metadata.get_all("Provides-Extra") or ()) == set(PROJECT["optional-dependencies"])
    needed = [line for line in metadata.get_all("Requires-Dist") or () if "extra ==" not in line]
    assert len(needed) == len(PROJECT["dependencies"])
    assert "Apache License" in read("licenses/LICENSE")
    assert "sweetrl = sweetrl.cli.main:main" in read("entry_points.txt")
