"""The manifests in infra/kubernetes: Kubernetes accepts them, they are consistent with each other, and they agree with
the code and the locks."""

from __future__ import annotations

import re
import tomllib
from typing import Final

import kubernetes_validate
import pytest
import yaml

from platform_assets.services import spark_node
from platform_assets.services.home import CHECKOUT
from platform_assets.services.run_launcher import SERVERS_SHARE_ENVIRONMENT
from platform_assets.services.spark_server import PURGE_MILLISECONDS, PURGE_VARIABLE, TOKEN_VARIABLE
from platform_assets.services.web_guard import AllowedHosts, refusal
from platform_assets_tests.support.locks import DOCKERFILE, locked_python
from platform_assets_tests.support.manifests import (
    BASE,
    FOLDER,
    KUBERNETES,
    containers,
    kustomization,
    manifests,
    pods,
    settings,
    values,
)

SECRETS: Final = {
    "platform-control": {TOKEN_VARIABLE, "SPARK_AUTH_SECRET", "DAGSTER_POSTGRES_URL"},
    "platform-data": None,  # environment for Kafka and the object store, which may contain anything
}
"""Secrets and config maps that the guide tells users to create, with the keys to which the manifests refer."""


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_every_object(version: str) -> None:
    found = manifests()
    assert len(found) >= 8
    for manifest in found:
        kubernetes_validate.validate(dict(manifest), version, strict=True)


def test_every_file_is_named_and_every_named_one_is_there() -> None:
    base = kustomization(BASE)
    named = {*base["resources"], "kustomization.yaml"}
    for generator in base["configMapGenerator"]:
        named |= {*generator.get("envs", []), *generator.get("files", [])}
    assert named == {path.name for path in BASE.iterdir()}
    for folder in kustomization(FOLDER / "example")["resources"]:
        assert (FOLDER / "example" / folder / "kustomization.yaml").is_file()


def test_the_one_image_is_of_this_version_in_base_and_example() -> None:
    version = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert {container["image"] for _, container in containers()} == {"platform-assets"}
    for folder in (BASE, FOLDER / "example"):
        (image,) = kustomization(folder)["images"]
        assert (image["name"], image["newTag"]) == ("platform-assets", version)


def test_the_image_has_the_locked_packages_and_jars_and_compiled_kernels() -> None:
    text = DOCKERFILE.read_text("utf-8")
    stage = text[text.index(" AS cluster") :]
    assert "FROM dagster AS cluster" in text
    assert "python -m platform_assets.services.jars install --set spark --set s3a" in stage
    assert "python -m platform_assets.kernels" in stage
    assert locked_python("pyspark")
    assert locked_python("dagster-postgres")
    for name in ("NUMBA_CACHE_DIR", "PLATFORM_HOME"):
        assert f"{name}={settings()[name]}" in stage


def test_selectors_find_pods_and_ports_are_open() -> None:
    labels = {name: pod["metadata"]["labels"] for name, pod in pods().items()}
    ports = {
        name: {p["name"]: p["containerPort"] for _, c in containers() if _ == name for p in c.get("ports", [])}
        for name in labels
    }
    for manifest in manifests():
        spec = manifest["spec"]
        if manifest["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
            assert spec["selector"]["matchLabels"] in labels.values(), manifest["metadata"]
        if manifest["kind"] == "Service":
            (target,) = (name for name, label in labels.items() if label == spec["selector"])
            assert {port["targetPort"] for port in spec["ports"]} <= ports[target].keys()
        if manifest["kind"] == "NetworkPolicy":
            (target,) = (name for name, label in labels.items() if label == spec["podSelector"]["matchLabels"])
            assert {p["port"] for rule in spec["ingress"] for p in rule.get("ports", [])} <= set(ports[target].values())
    assert set(labels) == {m["metadata"]["name"] for m in manifests() if m["kind"] == "NetworkPolicy"}


def test_ports_are_those_of_the_processes() -> None:
    open_ports = {port["name"]: port["containerPort"] for _, c in containers() for port in c.get("ports", [])}
    assert open_ports == {
        "spark": spark_node.MASTER_PORT,
        "worker": spark_node.WORKER_PORT,
        "driver": spark_node.DRIVER_PORT,
        "blocks": spark_node.BLOCKS_PORT,
        "http": 3000,
    }


def test_processes_of_spark_are_given_arguments_that_they_take() -> None:
    nodes = [
        container for _, container in containers() if container["command"][-1] == "platform_assets.services.spark_node"
    ]
    assert [spark_node.parser().parse_args(c["args"]).node for c in nodes] == ["master", "worker", "connect"]


def test_secrets_are_asked_for_by_name_and_written_nowhere() -> None:
    asked = [reference for manifest in manifests() for reference in values(manifest, "secretKeyRef")]
    assert {(r["name"], r["key"]) for r in asked} == {
        (name, key) for name, keys in SECRETS.items() for key in keys or ()
    }
    assert {r["name"] for m in manifests() for r in values(m, "secretRef")} == {"platform-data"}
    assert not [m for m in manifests() if m["kind"] == "Secret"]
    for _, container in containers():
        for variable in container.get("env", []):
            if re.search("TOKEN|SECRET|PASSWORD|_URL", variable["name"]):
                assert "value" not in variable, variable
    example = [text for g in kustomization(FOLDER / "example")["configMapGenerator"] for text in g["literals"]]
    for name in (*settings(), *(text.split("=")[0] for text in example)):
        assert not re.search("TOKEN|SECRET|PASSWORD|ACCESS_KEY", name), name


def test_executors_have_what_loads_need_and_nothing_of_dagsters() -> None:
    (worker,) = (container for name, container in containers() if name == "spark-worker")
    assert {r["name"] for r in values(worker, "secretRef")} == {"platform-data"}
    assert {r["key"] for r in values(worker, "secretKeyRef")} == {"SPARK_AUTH_SECRET"}


def test_containers_that_run_none_of_the_platforms_code_have_no_secret_but_dagsters_storage() -> None:
    for name in ("storage", "webserver"):
        (container,) = (dict(c) for _, c in containers() if c["name"] == name)
        assert list(values(container, "secretRef")) == [], name
        assert {r["key"] for r in values(container, "secretKeyRef")} == {"DAGSTER_POSTGRES_URL"}, name


def test_settings_are_documented_variables() -> None:
    known = (CHECKOUT / "docs" / "configuration.md").read_text("utf-8") + (
        CHECKOUT / "docs" / "guide" / "object-stores.md"
    ).read_text("utf-8")
    for name in settings().keys() - {"NUMBA_CACHE_DIR", PURGE_VARIABLE}:
        assert f"`{name}`" in known, name
    assert settings()[PURGE_VARIABLE] == PURGE_MILLISECONDS


def test_dagster_is_the_embedded_one_but_for_its_storage_and_its_code_server() -> None:
    embedded = yaml.safe_load((CHECKOUT / "platform_assets" / "services" / "dagster.yaml").read_text("utf-8"))
    own = yaml.safe_load((BASE / "dagster.yaml").read_text("utf-8"))
    assert own.pop("storage") == {"postgres": {"postgres_url": {"env": "DAGSTER_POSTGRES_URL"}}}
    # Runs are processes in the daemon's container, so its environment has to equal that of the code.
    assert own["run_launcher"].pop("config") == {SERVERS_SHARE_ENVIRONMENT: True}
    environments = {c["name"]: (c["env"], c["envFrom"]) for _, c in containers() if c["name"] in ("code", "daemon")}
    assert environments["code"] == environments["daemon"]
    assert own == embedded


def test_the_web_server_is_the_guarded_one_and_takes_its_probes() -> None:
    (web,) = (container for _, container in containers() if container["name"] == "webserver")
    assert web["command"][-3:] == ["python", "-m", "platform_assets.services.webserver"]
    allowed = AllowedHosts.parse("")
    for probe in (web["readinessProbe"], web["livenessProbe"]):
        (header,) = probe["httpGet"]["httpHeaders"]
        sent = [(header["name"].lower().encode(), header["value"].encode())]
        assert refusal("GET", probe["httpGet"]["path"], sent, allowed) is None


def test_no_container_may_more_than_it_needs() -> None:
    for name, pod in pods().items():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["runAsUser"]) == (True, 185)
    for _, container in containers():
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert {"memory", "ephemeral-storage"} <= container["resources"]["limits"].keys()
    for name, pod in pods().items():
        volumes = [v for v in pod["spec"]["volumes"] if "emptyDir" in v]
        assert volumes
        assert all("sizeLimit" in v["emptyDir"] for v in volumes), name
    writable = {mount["mountPath"] for _, c in containers() for mount in c["volumeMounts"]}
    assert writable == {"/scratch", "/tmp", "/recovery", "/dagster", "/dagster/dagster.yaml"}


def test_one_platform_runs_at_a_time_and_its_clients_of_spark_are_on_loopback() -> None:
    (platform,) = (m for m in manifests() if m["kind"] == "Deployment" and m["metadata"]["name"] == "platform")
    assert (platform["spec"]["replicas"], platform["spec"]["strategy"]) == (1, {"type": "Recreate"})
    remotes = [v["value"] for v in values(platform, "env") for v in v if v["name"] == "SPARK_REMOTE"]
    assert len(remotes) == 2
    assert set(remotes) == {f"sc://localhost:{spark_node.CONNECT_PORT}/;token=$({TOKEN_VARIABLE})"}


def test_processes_of_spark_encrypt_with_authentication_and_without_a_fallback() -> None:
    given = spark_node.guarding({spark_node.AUTH_VARIABLE: "a secret"})
    assert given["spark.network.crypto.cipher"] == "AES/GCM/NoPadding"
    assert given["spark.network.crypto.saslFallback"] == "false"
    assert "a secret" not in given.values()
    assert spark_node.guarding({}) == {}
