"""The network policies, evaluated as Kubernetes does: they allow exactly the connections that the platform's parts
need."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, Final

import pytest
import yaml

from platform_assets_tests.support.manifests import FOLDER, manifests

NAME: Final = "app.kubernetes.io/name"
MASTER: Final = {NAME: "spark-master"}
WORKER: Final = {NAME: "spark-worker"}
PLATFORM: Final = {NAME: "platform"}
RUN: Final = {NAME: "platform-run"}
PROXY: Final = {"platform-assets/ui": "proxy"}
OTHER: Final = {NAME: "something-else"}
NAMESPACE: Final = "kubernetes.io/metadata.name"
DNS: Final = {"k8s-app": "kube-dns", NAMESPACE: "kube-system"}
FALSE_DNS: Final = {"k8s-app": "kube-dns", NAMESPACE: "somebody-elses"}
OUTSIDE: Final = "203.0.113.7"
METADATA: Final = "169.254.169.254"
Labels = Mapping[str, str]
Policy = Mapping[str, Any]


def base() -> list[Policy]:
    return [m["spec"] for m in manifests() if m["kind"] == "NetworkPolicy"]


def overlay() -> list[Policy]:
    return [*base(), *(m["spec"] for m in yaml.safe_load_all((FOLDER / "runs-in-pods" / "network.yaml").read_text()))]


def passes(policies: list[Policy], source: Labels | str, target: Labels | str, port: int) -> bool:
    """Return True if the policies for the source and for the target both allow the connection.

    An address stands for anything that is not one of the platform's pods.
    """
    out = isinstance(source, str) or _allowed(policies, "Egress", source, target, port)
    return out and (isinstance(target, str) or _allowed(policies, "Ingress", target, source, port))


def _allowed(policies: list[Policy], direction: str, pod: Labels, other: Labels | str, port: int) -> bool:
    """Return True if no policy selects the pod, or if a policy that selects the pod has a matching rule."""
    mine = [p for p in policies if direction in p["policyTypes"] and _has(pod, p["podSelector"]["matchLabels"])]
    side = "to" if direction == "Egress" else "from"
    rules = [rule for policy in mine for rule in policy.get(direction.lower(), [])]
    return not mine or any(
        ("ports" not in rule or port in [p["port"] for p in rule["ports"]])
        and any(_is(other, peer) for peer in rule[side])
        for rule in rules
    )


def _is(other: Labels | str, peer: Mapping[str, Any]) -> bool:
    if "ipBlock" in peer:
        # Rules with addresses are for targets outside; pods are selected by their labels.
        block = peer["ipBlock"]
        inside = [block["cidr"], *block.get("except", [])]
        fits = [isinstance(other, str) and ipaddress.ip_address(other) in ipaddress.ip_network(c) for c in inside]
        return fits[0] and not any(fits[1:])
    namespace = peer.get("namespaceSelector", {}).get("matchLabels", {})
    # A pod in these tests is in the policies' own namespace unless its labels name another.
    near = (
        NAMESPACE not in other
        if "namespaceSelector" not in peer
        else not isinstance(other, str) and _has(other, namespace)
    )
    return not isinstance(other, str) and near and _has(other, peer["podSelector"]["matchLabels"])


def _has(labels: Labels, wanted: Labels) -> bool:
    return wanted.items() <= labels.items()


@pytest.mark.parametrize("policies", [base(), overlay()], ids=["base", "runs-in-pods"])
def test_what_the_parts_need_passes(policies: list[Policy]) -> None:
    needed: list[tuple[Labels, Labels | str, int]] = [
        (PROXY, PLATFORM, 3000),
        (WORKER, MASTER, 7077),
        (PLATFORM, MASTER, 7077),
        (MASTER, WORKER, 7081),
        (MASTER, PLATFORM, 7078),
        # Executors listen on ports that they choose.
        (PLATFORM, WORKER, 40123),
        (WORKER, WORKER, 40123),
        (WORKER, PLATFORM, 7078),
        (WORKER, PLATFORM, 7079),
        *((pod, DNS, 53) for pod in (MASTER, WORKER, PLATFORM)),
        *((pod, OUTSIDE, port) for pod in (WORKER, PLATFORM) for port in (443, 8081, 9092, 9093)),
        (PLATFORM, OUTSIDE, 5432),
    ]
    assert [flow for flow in needed if not passes(policies, *flow)] == []


def test_what_runs_in_pods_need_passes() -> None:
    needed: list[tuple[Labels, Labels | str, int]] = [
        (RUN, MASTER, 7077),
        (MASTER, RUN, 7078),
        (RUN, WORKER, 40123),
        (WORKER, RUN, 7078),
        (WORKER, RUN, 7079),
        (RUN, DNS, 53),
        *((RUN, OUTSIDE, port) for port in (443, 5432, 8081, 9092, 9093)),
        (PLATFORM, OUTSIDE, 6443),
    ]
    assert [flow for flow in needed if not passes(overlay(), *flow)] == []


@pytest.mark.parametrize("policies", [base(), overlay()], ids=["base", "runs-in-pods"])
def test_nothing_else_passes(policies: list[Policy]) -> None:
    refused: list[tuple[Labels, Labels | str, int]] = [
        # The UI, Spark and its driver from any other pod; also the UI from executors, which run code of loads.
        *((OTHER, pod, port) for pod in (MASTER, WORKER, PLATFORM) for port in (3000, 4000, 7077, 7078, 7081, 15002)),
        *((pod, PLATFORM, 3000) for pod in (MASTER, WORKER, RUN)),
        *((PROXY, pod, port) for pod in (MASTER, WORKER, PLATFORM) for port in (7077, 7078, 7081, 15002)),
        # The cloud's metadata service with the machine's credentials, and other services.
        *((pod, METADATA, port) for pod in (MASTER, WORKER, PLATFORM) for port in (80, 443)),
        *((pod, OUTSIDE, 25) for pod in (MASTER, WORKER, PLATFORM)),
        *((MASTER, OUTSIDE, port) for port in (443, 8081, 9092)),
        *((pod, FALSE_DNS, 53) for pod in (MASTER, WORKER, PLATFORM)),
        (WORKER, OUTSIDE, 5432),
        (WORKER, OTHER, 8080),
    ]
    assert [flow for flow in refused if passes(policies, *flow)] == []
