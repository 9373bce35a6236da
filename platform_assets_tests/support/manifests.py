"""The parsed manifests in infra/kubernetes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from platform_assets.services.home import CHECKOUT

FOLDER: Final = CHECKOUT / "infra" / "kubernetes"
BASE: Final = FOLDER / "base"
KUBERNETES: Final = ("1.31", "1.34")
"""Kubernetes versions whose schemas are used to validate objects."""
Manifest = Mapping[str, Any]


def kustomization(folder: Path) -> dict[str, Any]:
    """Return the kustomization of a folder."""
    found: dict[str, Any] = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))
    return found


def manifests() -> list[Manifest]:
    """Return all objects of the base."""
    texts = [(BASE / name).read_text("utf-8") for name in kustomization(BASE)["resources"]]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def pods() -> dict[str, Manifest]:
    """Map the name of each controller to its pod template."""
    return {m["metadata"]["name"]: m["spec"]["template"] for m in manifests() if "template" in m["spec"]}


def containers() -> Iterator[tuple[str, Manifest]]:
    """Return all containers, including init containers, each with the name of its pod."""
    for name, pod in pods().items():
        for container in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]):
            yield name, container


def values(node: Any, key: str) -> Iterator[Any]:
    """Yield the values of `key` at any depth of a manifest."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == key:
                yield value
            yield from values(value, key)
    elif isinstance(node, list):
        for each in node:
            yield from values(each, key)


def settings() -> dict[str, str]:
    """Return the environment variables in settings.env, which contains no secrets."""
    lines = (BASE / "settings.env").read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
