"""The overlay that runs each Dagster run in a separate pod: Kubernetes accepts the job that Dagster's launcher creates
for a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import kubernetes_validate
import pytest
import yaml
from dagster._core.definitions.reconstruct import ReconstructableJob

from platform_assets.services import spark_node
from platform_assets_tests.support.manifests import BASE, KUBERNETES, containers, kustomization, settings, values
from platform_assets_tests.support.run_pods import OVERLAY, Job, instance_of_overlay, job_of

CODE = """\
import dagster as dg

@dg.job
def working(): ...
"""


JobOf = Callable[[Mapping[str, str]], Job]


@pytest.fixture(scope="module")
def job_with(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobOf]:
    """Create the Kubernetes job for a run with these tags."""
    folder = tmp_path_factory.mktemp("overlay")
    (folder / "one.py").write_text(CODE)
    with instance_of_overlay(folder, own_storage=True) as (instance, jobs):
        working = ReconstructableJob.for_file(str(folder / "one.py"), "working")

        def made(tags: Mapping[str, str]) -> Job:
            origin = working.get_python_origin()
            run = instance.create_run_for_job(working.get_definition(), job_code_origin=origin, tags=dict(tags))
            return job_of(instance, jobs, run)

        yield made


@pytest.fixture(scope="module")
def job(job_with: JobOf) -> Job:
    """Return the Kubernetes job for an arbitrary run."""
    return job_with({})


def _objects() -> list[dict[str, Any]]:
    names = ("rbac.yaml", "network.yaml")
    return [d for name in names for d in yaml.safe_load_all((OVERLAY / name).read_text("utf-8"))]


def _settings() -> dict[str, str]:
    lines = (OVERLAY / "settings.env").read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def _pod(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_the_job_of_a_run_and_every_object(job: Job, version: str) -> None:
    for each in (job, *_objects()):
        kubernetes_validate.validate(each, version, strict=True)


def test_every_file_is_named_and_the_image_is_that_of_the_overlay(job: Job) -> None:
    overlay = kustomization(OVERLAY)
    (image,) = overlay["images"]
    (of_base,) = kustomization(BASE)["images"]
    assert image["newTag"] == of_base["newTag"]
    assert {c["image"] for c in _containers(job)} == {f"{image['newName']}:{image['newTag']}"}
    named = {"kustomization.yaml", *(p["path"] for p in overlay["patches"]), *overlay["resources"]} - {"../base"}
    generated = {g["name"]: g for g in overlay["configMapGenerator"]}
    for generator in generated.values():
        named |= {*generator.get("envs", []), *generator.get("files", [])}
    assert named == {path.name for path in OVERLAY.iterdir()}
    # ConfigMaps named in dagster.yaml have exactly that name, and the same content as the others.
    for name in _maps_of(job):
        assert generated[name]["options"] == {"disableNameSuffixHash": True}
    assert generated["platform-run-settings"]["envs"] == generated["platform-settings"]["envs"]
    assert generated["platform-run-dagster"]["files"] == generated["platform-dagster"]["files"]
    assert _settings().keys() >= settings().keys()


def test_dagster_is_that_of_the_base_but_for_its_launcher() -> None:
    own, base = (yaml.safe_load((folder / "dagster.yaml").read_text("utf-8")) for folder in (OVERLAY, BASE))
    assert own.pop("run_launcher") != base.pop("run_launcher")
    assert own == base


def test_the_output_of_a_run_is_printable(job: Job) -> None:
    (run,) = _pod(job)["containers"]
    assert run["command"] == ["python", "-m", "platform_assets.services.container"]
    assert run["args"][:3] == ["dagster", "api", "execute_run"]


def test_the_pod_of_a_run_may_no_more_than_others_and_the_daemon_may_start_jobs(job: Job) -> None:
    pod = _pod(job)
    assert pod["automountServiceAccountToken"] is False
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 185)
    for container in _containers(job):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {"memory", "ephemeral-storage"} <= container["resources"]["limits"].keys()
    kinds = {o["kind"]: o for o in _objects() if o["kind"] in ("Role", "RoleBinding")}
    (jobs, *others) = kinds["Role"]["rules"]
    assert (jobs["apiGroups"], set(jobs["verbs"])) == (["batch"], {"create", "get", "list", "watch", "patch", "delete"})
    assert {verb for rule in others for verb in rule["verbs"]} == {"get", "list", "watch"}
    names = {o["metadata"]["name"] for o in _objects() if o["kind"] == "ServiceAccount"}
    assert kinds["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": "platform"}]
    assert names == {"platform", pod["serviceAccountName"]}
    assert job["metadata"]["namespace"] == kustomization(OVERLAY)["namespace"]


@pytest.mark.parametrize(
    ("tag", "value"),
    [
        ("config", {"container_config": {"image": "evil.example/image"}}),
        ("config", {"container_config": {"command": ["sh"], "args": ["-c", "env"]}}),
        ("config", {"container_config": {"security_context": {"privileged": True}}}),
        ("config", {"container_config": {"env_from": [{"secret_ref": {"name": "another-secret"}}]}}),
        ("config", {"container_config": {"env": [{"name": "PYTHONPATH", "value": "/evil"}]}}),
        ("config", {"pod_spec_config": {"volumes": [{"name": "host", "host_path": {"path": "/"}}]}}),
        ("config", {"pod_spec_config": {"service_account_name": "platform"}}),
        ("config", {"pod_spec_config": {"containers": [{"name": "another", "image": "evil.example/image"}]}}),
        ("config", {"pod_template_spec_metadata": {"labels": {"app.kubernetes.io/name": "platform"}}}),
        ("config", {"job_metadata": {"labels": {"a": "b"}}}),
        ("config", {"job_spec_config": {"parallelism": 50}}),
        ("resource_requirements", {"limits": {"cpu": "100"}}),
    ],
    ids=str,
)
def test_tags_of_a_run_choose_nothing_of_its_pod(job_with: JobOf, tag: str, value: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="violated the allowed list"):
        job_with({f"dagster-k8s/{tag}": json.dumps(value)})


def test_a_tag_that_only_says_how_to_merge_changes_nothing(job_with: JobOf, job: Job) -> None:
    for behaviour in ("SHALLOW", "DEEP"):
        found = job_with({"dagster-k8s/config": json.dumps({"merge_behavior": behaviour})})
        assert _pod(found)["volumes"] == _pod(job)["volumes"]
        assert [_alike(c) for c in _containers(found)] == [_alike(c) for c in _containers(job)]


def test_containers_of_the_platform_share_no_processes_and_the_daemon_has_no_credential_of_data() -> None:
    spec = yaml.safe_load((OVERLAY / "platform.yaml").read_text("utf-8"))["spec"]["template"]["spec"]
    assert spec["shareProcessNamespace"] is False
    (daemon,) = (c for c in spec["containers"] if c["name"] == "daemon")
    # A list without a merge key replaces the base's list.
    assert daemon["envFrom"] == [{"configMapRef": {"name": "platform-settings"}}]


def test_secrets_are_asked_for_by_name_as_in_the_base(job: Job) -> None:
    base = {(r["name"], r["key"]) for _, c in containers() for r in values(dict(c), "secretKeyRef")}
    assert {(r["name"], r["key"]) for r in values(job, "secretKeyRef")} <= base
    assert {r["name"] for r in values(job, "secretRef")} == {"platform-data"}
    for container in _containers(job):
        for variable in container["env"]:
            if variable["name"].endswith(("TOKEN", "SECRET", "PASSWORD", "_URL")):
                assert "value" not in variable, variable


def test_the_connect_server_of_a_run_is_that_of_the_base_with_a_bound(job: Job) -> None:
    (own,) = (c for c in _pod(job)["initContainers"] if c["name"] == "connect")
    assert own["restartPolicy"] == "Always"
    assert spark_node.parser().parse_args(own["args"]).conf[-1].startswith("spark.cores.max=")
    (base,) = (c for _, c in containers() if c["name"] == "connect")
    patch = yaml.safe_load((OVERLAY / "platform.yaml").read_text("utf-8"))
    (patched,) = (c for c in patch["spec"]["template"]["spec"]["containers"] if c["name"] == "connect")
    assert patched["args"] == [*base["args"], "--conf", "spark.cores.max=1"]
    assert own["ports"] == base["ports"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    policies = [o for o in _objects() if o["kind"] == "NetworkPolicy"]
    assert labels["app.kubernetes.io/name"] in {
        o["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for o in policies
    }


def _alike(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return a container's fields, except for those that identify the run."""
    return {name: value for name, value in container.items() if name not in ("args", "name")}


def _containers(job: Job) -> list[dict[str, Any]]:
    pod = _pod(job)
    return [*pod.get("initContainers", []), *pod["containers"]]


def _maps_of(job: Job) -> set[str]:
    """Return the names of the ConfigMaps that a run's pod uses."""
    mounted = {volume["configMap"]["name"] for volume in _pod(job)["volumes"] if "configMap" in volume}
    return mounted | {reference["name"] for reference in values(job, "configMapRef")}
