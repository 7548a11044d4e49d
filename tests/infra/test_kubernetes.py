"""The Kubernetes manifests: they refer to what is there, and hold against the published schemas."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).resolve().parents[2] / "infra/kubernetes"
BASE, PROJECT = FOLDER / "base", FOLDER / "project"
VERSION = "1.32"  # of Kubernetes, whose schemas the manifests must hold against
PLACEHOLDER = re.compile(r"\{\{ (\w+) \}\}")


def read(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


KUSTOMIZATION, OWN = read(BASE / "kustomization.yaml")[0], read(PROJECT / "kustomization.yaml")[0]
TEMPLATE = json.loads((BASE / "gpu-job-template.json").read_text(encoding="utf-8"))


def objects() -> Iterator[dict[str, Any]]:
    for name in KUSTOMIZATION["resources"]:
        yield from read(BASE / name)


def walk(tree: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in a tree."""
    for value in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from walk(value)
    if isinstance(tree, dict):
        yield tree


def job() -> dict[str, Any]:
    """The GPU job as it is made where nothing is set, as Prefect fills its template in."""
    defaults = {name: variable.get("default") for name, variable in TEMPLATE["variables"]["properties"].items()}

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            pairs = ((key, filled(item)) for key, item in value.items())
            return {key: item for key, item in pairs if item is not None}
        if isinstance(value, list):
            return [filled(item) for item in value]
        if isinstance(value, str) and (placeholder := PLACEHOLDER.fullmatch(value)):
            return defaults[placeholder[1]]
        return PLACEHOLDER.sub(lambda match: str(defaults[match[1]]), value) if isinstance(value, str) else value

    made = filled(TEMPLATE["job_configuration"]["job_manifest"])
    container = made["spec"]["template"]["spec"]["containers"][0]
    container |= {"env": [], "args": ["prefect", "flow-run", "execute"]}  # these two are Prefect's own
    return made


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for obj in objects():
        if obj["kind"] in ("Deployment", "StatefulSet"):
            yield obj["metadata"]["name"], obj["spec"]["template"]["spec"]
    yield "gpu-job", job()["spec"]["template"]["spec"]


def test_what_is_referred_to_is_there() -> None:
    files = {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(KUSTOMIZATION["resources"]) == files
    made = {(obj["kind"], obj["metadata"]["name"]) for obj in objects()}
    maps = [*KUSTOMIZATION["configMapGenerator"], *OWN["configMapGenerator"]]
    made |= {("ConfigMap", entry["name"]) for entry in maps}
    made |= {("Secret", entry["name"]) for entry in OWN["secretGenerator"]}
    kinds = {"configMapRef": "ConfigMap", "configMap": "ConfigMap", "secretRef": "Secret", "secretKeyRef": "Secret"}
    for name, pod in pods():
        for part in walk(pod):
            references = [(kind, part[key]["name"]) for key, kind in kinds.items() if key in part]
            if "secretName" in part:
                references.append(("Secret", part["secretName"]))
            if "persistentVolumeClaim" in part:
                references.append(("PersistentVolumeClaim", part["persistentVolumeClaim"]["claimName"]))
            assert not set(references) - made, name
        mounted = {mount["name"] for container in pod["containers"] for mount in container.get("volumeMounts", [])}
        claimed = {"data"} if name == "database" else set()
        assert mounted == {volume["name"] for volume in pod.get("volumes", [])} | claimed, name


S3 = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
SECRETS = {
    "database": {"PGPASSWORD"},
    "mlflow": {"PGPASSWORD", *S3},
    "prefect": {"PGPASSWORD", "PREFECT_SERVER_API_AUTH_STRING"},
    "worker": {"PREFECT_API_AUTH_STRING", *S3, "git-key"},
    "gpu-worker": {"PREFECT_API_AUTH_STRING"},
    "gpu-job": {"PREFECT_API_AUTH_STRING", *S3, "git-key"},
}


def keys_of(secret: str) -> set[str]:
    """The keys that an example says are in a secret."""
    lines = (PROJECT / f"{secret}.example.env").read_text(encoding="utf-8").splitlines()
    return {line.partition("=")[0] for line in lines if not line.startswith("#")}


@pytest.mark.parametrize(("name", "pod"), [pytest.param(name, pod, id=name) for name, pod in pods()])
def test_a_pod_gets_the_secrets_that_it_needs(name: str, pod: dict[str, Any]) -> None:
    """A worker runs what a model has written: it has no way into the database."""
    keys = set()
    for part in walk(pod):
        if "secretRef" in part:
            keys |= keys_of(part["secretRef"]["name"])
        if "secretKeyRef" in part:
            keys.add(part["secretKeyRef"]["key"])
            assert part["secretKeyRef"]["key"] in keys_of(part["secretKeyRef"]["name"])
        keys |= {part["secretName"]} if "secretName" in part else set()
    assert keys == SECRETS[name]


def test_nothing_leaves_a_pod_but_what_a_policy_says() -> None:
    policies = {obj["metadata"]["name"]: obj["spec"] for obj in objects() if obj["kind"] == "NetworkPolicy"}
    everywhere = policies["nothing-else"]
    assert everywhere["podSelector"] == {} and set(everywhere["policyTypes"]) == {"Ingress", "Egress"}
    ports = {rule["port"] for spec in policies.values() for way in spec.get("egress", ()) for rule in way["ports"]}
    assert ports == {53, 5432, 5000, 4200, 443, 6443, 22}


def test_services_lead_to_pods_and_pods_to_services() -> None:
    labels = {}
    for obj in objects():
        if obj["kind"] in ("Deployment", "StatefulSet"):
            labels[obj["metadata"]["name"]] = obj["spec"]["template"]["metadata"]["labels"]
            assert obj["spec"]["selector"]["matchLabels"].items() <= labels[obj["metadata"]["name"]].items()
    addresses = (PROJECT / "services.env").read_text(encoding="utf-8")
    for service in (obj for obj in objects() if obj["kind"] == "Service"):
        names = [name for name, of_pod in labels.items() if service["spec"]["selector"].items() <= of_pod.items()]
        assert names == [service["metadata"]["name"]]
    for port in (5000, 4200):
        name = re.search(rf"http://(\w+):{port}", addresses)
        assert name is not None and name[1] in labels


@pytest.mark.parametrize(("name", "pod"), [pytest.param(name, pod, id=name) for name, pod in pods()])
def test_no_pod_has_more_rights_than_it_needs(name: str, pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        rights = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert container["securityContext"] == rights
        assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}
        assert container["resources"]["limits"]["memory"]
    assert pod.get("automountServiceAccountToken", name == "gpu-worker") is (name == "gpu-worker")


def test_the_template_of_gpu_jobs_has_a_variable_for_every_placeholder() -> None:
    used = set(PLACEHOLDER.findall(json.dumps(TEMPLATE["job_configuration"])))
    assert used == set(TEMPLATE["variables"]["properties"])
    limits = job()["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"memory": "64Gi", "nvidia.com/gpu": 1}


def built(folder: Path, namespace: str) -> list[dict[str, Any]]:
    """What kubectl would apply of a copy of the example project in another namespace."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is missing, which puts the manifests together (kustomize)")
    shutil.copytree(BASE, folder / "base", dirs_exist_ok=True)
    project = shutil.copytree(PROJECT, folder / namespace)
    text = (PROJECT / "kustomization.yaml").read_text(encoding="utf-8")
    (project / "kustomization.yaml").write_text(text.replace("namespace: sweetrl", f"namespace: {namespace}"))
    for example in PROJECT.glob("*.example.env"):
        shutil.copy(example, project / example.name.replace(".example", ""))
    for name in ("git_key", "git_known_hosts"):
        (project / name).write_text("made by ssh-keygen")
    done = subprocess.run(
        ["kubectl", "kustomize", str(project)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_each_project_has_a_namespace_of_its_own(tmp_path: Path) -> None:
    for namespace in ("staging", "production"):
        made = built(tmp_path, namespace)
        assert [obj["metadata"]["name"] for obj in made if obj["kind"] == "Namespace"] == [namespace]
        assert {obj["metadata"].get("namespace", namespace) for obj in made} == {namespace}
        (binding,) = (obj for obj in made if obj["kind"] == "RoleBinding")
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "gpu-worker", "namespace": namespace}]
        images = {part["image"] for obj in made for part in walk(obj) if isinstance(part.get("image"), str)}
        assert images == {
            "postgres:16.10-alpine",
            "rclone/rclone:1.71.2",
            "sweetrl-server:0.1.0",
            "sweetrl-worker:0.1.0",
        }
        (worker,) = (obj for obj in made if (obj["kind"], obj["metadata"]["name"]) == ("Deployment", "gpu-worker"))
        (container,) = worker["spec"]["template"]["spec"]["containers"]
        assert container["args"][2].startswith('sed "s/OWN_NAMESPACE/$NAMESPACE/" /etc/sweetrl/gpu-job-template.json')
    own = [value.get("default") for value in TEMPLATE["variables"]["properties"].values()]
    assert own.count("OWN_NAMESPACE") == 1


def test_the_manifests_hold_against_the_published_schemas(tmp_path: Path) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="the schemas are in the package: make test-infra")
    made = built(tmp_path, "sweetrl")
    assert len(made) >= len(list(objects())) + 5
    for obj in [*made, job()]:
        schemas.validate(obj, VERSION, strict=True)
    broken = job()
    broken["spec"]["template"]["spec"]["containers"][0]["imagePulPolicy"] = "Always"
    with pytest.raises(schemas.ValidationError):
        schemas.validate(broken, VERSION, strict=True)
