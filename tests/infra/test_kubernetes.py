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
    defaults = {name: one.get("default") for name, one in TEMPLATE["variables"]["properties"].items()}

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            pairs = ((key, filled(one)) for key, one in value.items())
            return {key: one for key, one in pairs if one is not None}
        if isinstance(value, list):
            return [filled(one) for one in value]
        if isinstance(value, str) and (whole := PLACEHOLDER.fullmatch(value)):
            return defaults[whole[1]]
        return PLACEHOLDER.sub(lambda found: str(defaults[found[1]]), value) if isinstance(value, str) else value

    made = filled(TEMPLATE["job_configuration"]["job_manifest"])
    container = made["spec"]["template"]["spec"]["containers"][0]
    container |= {"env": [], "args": ["prefect", "flow-run", "execute"]}  # these two are Prefect's own
    return made


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for one in objects():
        if one["kind"] in ("Deployment", "StatefulSet"):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]
    yield "gpu-job", job()["spec"]["template"]["spec"]


def test_what_is_referred_to_is_there() -> None:
    files = {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(KUSTOMIZATION["resources"]) == files
    made = {(one["kind"], one["metadata"]["name"]) for one in objects()}
    maps = [*KUSTOMIZATION["configMapGenerator"], *OWN["configMapGenerator"]]
    made |= {("ConfigMap", one["name"]) for one in maps} | {("Secret", one["name"]) for one in OWN["secretGenerator"]}
    kinds = {"configMapRef": "ConfigMap", "configMap": "ConfigMap", "secretRef": "Secret", "secretKeyRef": "Secret"}
    for name, pod in pods():
        for part in walk(pod):
            wanted = [(kind, part[key]["name"]) for key, kind in kinds.items() if key in part]
            if "secretName" in part:
                wanted.append(("Secret", part["secretName"]))
            if "persistentVolumeClaim" in part:
                wanted.append(("PersistentVolumeClaim", part["persistentVolumeClaim"]["claimName"]))
            assert not set(wanted) - made, name
        mounted = {mount["name"] for one in pod["containers"] for mount in one.get("volumeMounts", [])}
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


@pytest.mark.parametrize(("name", "pod"), [pytest.param(*one, id=one[0]) for one in pods()])
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
    policies = {one["metadata"]["name"]: one["spec"] for one in objects() if one["kind"] == "NetworkPolicy"}
    everywhere = policies["nothing-else"]
    assert everywhere["podSelector"] == {} and set(everywhere["policyTypes"]) == {"Ingress", "Egress"}
    ports = {rule["port"] for spec in policies.values() for way in spec.get("egress", ()) for rule in way["ports"]}
    assert ports == {53, 5432, 5000, 4200, 443, 6443, 22}


def test_services_lead_to_pods_and_pods_to_services() -> None:
    labels = {}
    for one in objects():
        if one["kind"] in ("Deployment", "StatefulSet"):
            labels[one["metadata"]["name"]] = one["spec"]["template"]["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"].items() <= labels[one["metadata"]["name"]].items()
    addresses = (PROJECT / "services.env").read_text(encoding="utf-8")
    for service in (one for one in objects() if one["kind"] == "Service"):
        found = [name for name, known in labels.items() if service["spec"]["selector"].items() <= known.items()]
        assert found == [service["metadata"]["name"]]
    for port in (5000, 4200):
        name = re.search(rf"http://(\w+):{port}", addresses)
        assert name is not None and name[1] in labels


@pytest.mark.parametrize(("name", "pod"), [pytest.param(*one, id=one[0]) for one in pods()])
def test_no_pod_has_more_rights_than_it_needs(name: str, pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        none = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert container["securityContext"] == none
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
        assert [one["metadata"]["name"] for one in made if one["kind"] == "Namespace"] == [namespace]
        assert {one["metadata"].get("namespace", namespace) for one in made} == {namespace}
        (binding,) = (one for one in made if one["kind"] == "RoleBinding")
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "gpu-worker", "namespace": namespace}]
        images = {part["image"] for one in made for part in walk(one) if isinstance(part.get("image"), str)}
        assert images == {
            "postgres:16.10-alpine",
            "rclone/rclone:1.71.2",
            "sweetrl-server:0.1.0",
            "sweetrl-worker:0.1.0",
        }
        (worker,) = (one for one in made if (one["kind"], one["metadata"]["name"]) == ("Deployment", "gpu-worker"))
        (container,) = worker["spec"]["template"]["spec"]["containers"]
        assert container["args"][2].startswith('sed "s/OWN_NAMESPACE/$NAMESPACE/" /etc/sweetrl/gpu-job-template.json')
    own = [value.get("default") for value in TEMPLATE["variables"]["properties"].values()]
    assert own.count("OWN_NAMESPACE") == 1


def test_the_manifests_hold_against_the_published_schemas(tmp_path: Path) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="the schemas are in the package: make test-infra")
    made = built(tmp_path, "sweetrl")
    assert len(made) >= len(list(objects())) + 5
    for one in [*made, job()]:
        schemas.validate(one, VERSION, strict=True)
    broken = job()
    broken["spec"]["template"]["spec"]["containers"][0]["imagePulPolicy"] = "Always"
    with pytest.raises(schemas.ValidationError):
        schemas.validate(broken, VERSION, strict=True)
