"""The images: their scripts say what is wrong in one sentence, what they copy exists, and they can be built."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
SCRIPTS = INFRA / "image"
CONTAINERFILE = (INFRA / "Containerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((INFRA / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]


def run(*command: str | Path, **changes: str) -> subprocess.CompletedProcess[str]:
    plain = {"PATH": os.environ["PATH"]}
    return subprocess.run(
        [str(word) for word in command], env=plain | changes, capture_output=True, text=True, timeout=60, check=False
    )


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_secrets_come_from_files_and_only_the_named_ones(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cr et$\n")
    show = ("sh", "-c", 'printf "%s|%s" "$PGPASSWORD" "${SSL_CERT:-none}"')
    done = run(SCRIPTS / "with-secrets", *show, PGPASSWORD_FILE=str(tmp_path / "password"), SSL_CERT_FILE="/etc/ssl/x")
    assert (done.returncode, done.stdout) == (0, "s3cr et$|none")
    done = run(SCRIPTS / "with-secrets", "true", PGPASSWORD_FILE=str(tmp_path / "absent"))
    assert done.returncode == 1 and "absent cannot be read" in done.stderr and len(done.stderr.splitlines()) == 1


def test_who_may_use_the_servers_is_set_on_one_host_and_in_a_cluster() -> None:
    """A flow run runs commands on the worker: Prefect asks for a password and takes no page of another site."""
    cluster = "".join(path.read_text(encoding="utf-8") for path in (INFRA / "kubernetes/base").glob("*.yaml"))
    prefect = SERVICES["prefect"]["environment"]
    for name in ("PREFECT_SERVER_CSRF_PROTECTION_ENABLED", "PREFECT_SERVER_CORS_ALLOWED_ORIGINS"):
        assert prefect[name] != "*" and name in cluster
    assert (
        prefect["PREFECT_SERVER_API_AUTH_STRING_FILE"]
        == SERVICES["worker"]["environment"]["PREFECT_API_AUTH_STRING_FILE"]
    )
    (hosts,) = (word for word in SERVICES["mlflow"]["command"] if word.startswith("--allowed-hosts="))
    assert hosts in cluster and "*" not in hosts


def test_a_worker_says_what_is_wrong_with_the_mounted_checkout(tmp_path: Path) -> None:
    done = run(SCRIPTS / "work", SWEETRL_HOME=str(tmp_path))
    assert done.returncode == 1 and "no checkout of the project is mounted" in done.stderr
    (tmp_path / "params.yaml").touch()
    program(tmp_path / "prefect", 'echo "$@"')
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = run(SCRIPTS / "work", "--limit", "2", SWEETRL_HOME=str(tmp_path), PATH=path, WORK_POOL="mine")
    assert done.stdout.strip() == "worker start --pool mine --type process --with-healthcheck --limit 2"


def test_the_command_line_in_a_worker_is_the_checkouts(tmp_path: Path) -> None:
    program(tmp_path / "python", 'echo "$@"')
    done = run(SCRIPTS / "sweetrl", "doctor", "--json", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.stdout.strip() == "-m sweetrl.cli doctor --json"
    assert "infra/image/sweetrl /usr/local/bin/" in CONTAINERFILE.split("AS worker")[1]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository to clone, and beside it a `prefect` that only prints that it was started."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "params.yaml").touch()
    (source / "tasks.py").write_text("the last file")
    identity = ("-c", "user.name=t", "-c", "user.email=t@t")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "first")):
        assert run("git", "-C", source, *words).returncode == 0
    program(tmp_path / "prefect", "echo started")
    return source


def start_worker(folder: Path, repository: Path) -> subprocess.CompletedProcess[str]:
    path = f"{repository.parent}:{os.environ['PATH']}"
    return run(SCRIPTS / "work", SWEETRL_HOME=str(folder), SWEETRL_GIT=str(repository), PATH=path, WORK_POOL="mine")


def test_a_worker_clones_the_repository_onto_an_empty_volume(tmp_path: Path, repository: Path) -> None:
    """Also onto one that has what file systems and their servers put there."""
    folder = tmp_path / "volume"
    (folder / "lost+found").mkdir(parents=True)
    done = start_worker(folder, repository)
    assert done.stdout == "started\n" and (folder / "params.yaml").exists(), done.stderr
    (folder / "params.yaml").write_text("mine")
    done = start_worker(folder, repository)
    assert done.stdout == "started\n" and (folder / "params.yaml").read_text() == "mine"


@pytest.mark.parametrize("word", ["clone", "reset"])
def test_a_clone_that_was_killed_is_finished_by_the_next_worker(tmp_path: Path, repository: Path, word: str) -> None:
    """Half of a clone was no empty volume, and half of a checkout passed for a finished one."""
    folder = tmp_path / "volume"
    folder.mkdir()
    half = 'for last; do :; done; mkdir -p "$last/.git/objects"' if word == "clone" else f"touch {folder}/params.yaml"
    dying = f'case " $* " in *" {word} "*) {half}; kill -9 $PPID;; *) exec {shutil.which("git")} "$@";; esac'
    git = program(tmp_path / "git", dying)
    assert start_worker(folder, repository).returncode == -9
    git.unlink()
    done = start_worker(folder, repository)
    assert done.stdout == "started\n", done.stderr
    assert (folder / "tasks.py").read_text() == "the last file"
    assert run("git", "-C", folder, "status", "--porcelain").stdout == ""


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_worker_refuses_a_checkout_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").touch()
    tmp_path.chmod(0o555)
    done = run(SCRIPTS / "work", SWEETRL_HOME=str(tmp_path))
    assert done.returncode == 1 and "build the image with UID and GID of the owner" in done.stderr


def test_no_service_writes_to_its_image_or_takes_all_of_the_machine() -> None:
    for name, service in SERVICES.items():
        assert service["read_only"] and service["tmpfs"] and service["security_opt"], name
        assert service["mem_limit"] and service["cpus"] and service["pids_limit"], name
        assert re.search(r":\d+\.\d+(\.\d+)?(-\w+)?$", service["image"]), f"{name}: an image that may change"
    assert "/project/infra/secrets" in SERVICES["worker"]["tmpfs"], "the database's password lies there"
    base = re.findall(r"^ARG BASE=(.+)", CONTAINERFILE, re.M)
    assert [re.search(r":\d+\.\d+\.\d+-", name) is not None for name in base] == [True]


def test_git_in_a_worker_goes_by_the_mounted_key_alone(tmp_path: Path) -> None:
    """The image's own setting, with an ssh that says how it was called."""
    (setting,) = re.findall(r"--system (core\.sshCommand) \"([^\"]+)\"", CONTAINERFILE)
    program(tmp_path / "ssh", 'echo "$@" >&2; exit 255')
    key, value = setting[0], " ".join(setting[1].replace("\\\n", " ").split())
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = run("git", "-c", f"{key}={value}", "ls-remote", "git@git.example.org:team/agent.git", PATH=path)
    assert (
        "-i /run/secrets/git_key " in done.stderr and "UserKnownHostsFile=/run/secrets/git_known_hosts " in done.stderr
    )
    assert "BatchMode=yes" in done.stderr and done.returncode, "nobody is asked for a password at night"


def test_the_images_copy_what_exists_and_know_their_arguments() -> None:
    for copied in re.findall(r"^COPY (?:--\S+ )*(.+) \S+$", CONTAINERFILE, re.M):
        for path in copied.split():
            assert (ROOT / path).is_file(), path
    for script in (*SCRIPTS.iterdir(), INFRA / "make-secrets"):
        assert script.stat().st_mode & stat.S_IXUSR and run("sh", "-n", script).returncode == 0, script
    arguments = set(re.findall(r"^ARG (\w+)", CONTAINERFILE, re.M))
    for service in SERVICES.values():
        if "build" in service:
            assert set(service["build"]["args"]) <= arguments
            assert f"AS {service['build']['target']}\n" in CONTAINERFILE


def test_secrets_are_made_once_and_kept_from_others(tmp_path: Path) -> None:
    shutil.copy(INFRA / "make-secrets", tmp_path / "make-secrets")
    assert run(tmp_path / "make-secrets").stdout.count("is new") == 5
    first = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    random = {text.removeprefix("sweetrl:") for name, text in first.items() if not name.startswith("git_")}
    assert all(len(text) == 48 for text in random) and len(random) == 4
    assert [name for name, text in first.items() if text.startswith("sweetrl:")] == ["prefect_password"]
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert run(tmp_path / "make-secrets").stdout == ""
    assert {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()} == first
    assert {Path(secret["file"]).name for secret in COMPOSE["secrets"].values()} == set(first) - {"git_key.pub"}
    assert stat.S_IMODE((tmp_path / "secrets/git_key").stat().st_mode) == 0o600, "ssh takes no other"


def test_every_service_says_when_it_is_well_and_has_its_secrets() -> None:
    for name, service in SERVICES.items():
        assert service.get("profiles") == ["backup"] or service["healthcheck"]["test"], name
        text = yaml.safe_dump(service)
        used = set(re.findall(r"/run/secrets/(\w+)", text))
        used |= set(re.findall(r"/run/secrets/(\w+)", CONTAINERFILE)) if name == "worker" else set()
        assert used == set(service["secrets"]) <= set(COMPOSE["secrets"]), name
        assert not re.search(r"PASSWORD[}=:]", text.replace("PASSWORD_FILE", "")), (
            f"{name} has a password in its settings"
        )
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} is open to others"


BASE = "localhost/sweetrl-test-base"


class Builder:
    """buildah with a store of its own, without a daemon and without namespaces; what pip needs is mounted read-only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ["buildah", "--root", str(folder / "store"), "--runroot", str(folder / "run")]
        self.store += ["--storage-driver", "vfs"]
        mounts = [Path("/etc/ssl/certs/ca-certificates.crt"), *pip_paths()]
        self.mounts = [word for path in mounts if path.exists() for word in ("-v", f"{path}:{path}:ro")]

    def __call__(self, *words: str | Path, seconds: float = 120) -> str:
        command = [*self.store, *(str(word) for word in words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, cwd=ROOT)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        return done.stdout.strip()

    def run(self, container: str, *words: str, seconds: float = 120) -> str:
        """What a program in a container of the image prints, through the image's own entry point."""
        return self("run", "--isolation", "chroot", container, "--", "with-secrets", *words, seconds=seconds)


def pip_paths() -> list[Path]:
    """The machine's settings of pip, and the folders that they name as indexes."""
    settings = Path("/etc/pip.conf")
    if not settings.exists():
        return []
    parser = configparser.ConfigParser()
    parser.read(settings)
    words = " ".join(value for section in parser.sections() for value in parser[section].values()).split()
    folders = {Path(*Path(word.removeprefix("file://")).parts[:3]) for word in words}
    return [settings, *sorted(path for path in folders if path.is_absolute() and path.is_dir())]


@pytest.mark.slow  # `make test-images`: about ten minutes
@pytest.mark.timeout(2400)
def test_the_servers_image_is_built_and_answers(tmp_path: Path) -> None:
    for program in ("buildah", "debootstrap"):
        if shutil.which(program) is None or os.getuid() != 0:
            pytest.skip(f"{program} and root are needed to make an image without a registry")
    base = tmp_path / "base"
    packages = "--include=python3,python3-venv,ca-certificates"
    made = subprocess.run(
        ["debootstrap", "--variant=minbase", packages, "bookworm", base], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"debootstrap cannot make a base here: {(made.stdout + made.stderr).strip().splitlines()[-1]}")
    build = Builder(tmp_path)
    scratch = build("from", "scratch")
    build("add", "-q", scratch, base, "/", seconds=600)
    build("commit", "-q", scratch, BASE, seconds=600)
    arguments = [f"--build-arg={name}={value}" for name, value in (("BASE", BASE), ("UID", "1234"), ("GID", "1235"))]
    kind = ["--isolation", "chroot", "--network", "host", *build.mounts, *arguments]
    kind += ["--target", "server", "-t", "server"]
    build("bud", *kind, "-f", "infra/Containerfile", ".", seconds=1500)
    container = build("from", "--pull-never", "localhost/server")
    assert build.run(container, "id").startswith("uid=1234(sweetrl) gid=1235(sweetrl)")
    drivers = "import psycopg2, asyncpg, prefect_kubernetes, boto3; print('there')"
    assert build.run(container, "python", "-c", drivers) == "there"
    pinned = dict(line.split("==") for line in (ROOT / "requirements.lock").read_text().split() if "==" in line)
    assert build.run(container, "mlflow", "--version").endswith(pinned["mlflow"])
    assert build.run(container, "prefect", "--version").endswith(pinned["prefect"])
