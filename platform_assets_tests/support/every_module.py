"""Import every module of the product. `make product-check` runs this where nothing but the product's lock is installed."""

from __future__ import annotations

import importlib
import pkgutil
import sys

PACKAGE = "platform_assets"


def main() -> int:
    """Print what cannot be imported. Returns the number of such modules."""
    failed = 0
    for module in pkgutil.walk_packages(importlib.import_module(PACKAGE).__path__, f"{PACKAGE}."):
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
