"""Import every module of the product. `make product-check` runs this script in an environment with only the packages
from the product's lock."""

from __future__ import annotations

import importlib
import pkgutil
import sys

PACKAGE = "platform_assets"


def main() -> int:
    """Print the modules that cannot be imported. Return 1 if there are any such modules."""
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
