"""Import every module of the product. `make product-check` runs this where nothing but the product's lock is installed."""

from __future__ import annotations

import importlib
import pkgutil
import sys

PACKAGES = ("infra", "platform_assets")


def main() -> int:
    """Print what cannot be imported. Returns the number of such modules."""
    failed = 0
    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if module.name.endswith(".__main__"):
                continue
            try:
                importlib.import_module(module.name)
            except ImportError as e:
                print(f"{module.name}: {e}", file=sys.stderr)
                failed += 1
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
