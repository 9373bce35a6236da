"""`python -m platform_assets.kernels`: compile every kernel that is not yet in the cache."""

from __future__ import annotations

import importlib
import sys
from typing import Final

_MODULES: Final = (
    "arrow",
    "avro",
    "binary",
    "conversion",
    "csv",
    "hashing",
    "json_texts",
    "published",
    "records",
    "text",
    "typed_hashing",
)


def main() -> None:
    """Print the folder in which the kernels are stored, or the reason why there are no kernels. Without kernels, loads
    use Spark's connector."""
    try:
        importlib.import_module("numba")
    except (ImportError, OSError) as error:
        print(
            f"numba cannot be used here ({error}), so no kernels were compiled, and Spark's connector loads every window"
        )
        return
    for name in _MODULES:
        importlib.import_module(f"{sys.modules[__name__].__package__}.{name}")
    from platform_assets.kernels.compilation import CACHE_VARIABLE, cache_folder

    folder = cache_folder()
    if folder is None:
        print(
            "found no cache folder that only this user can write to, so each worker compiles the kernels itself, which "
            f"takes half a minute: set {CACHE_VARIABLE} to such a folder"
        )
    else:
        print(f"the compiled kernels are in {folder}")


if __name__ == "__main__":
    main()
