"""The project in the current folder, as `platform-assets init` creates it: declarations, settings and a data folder."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

from platform_assets.services.home import HOME_VARIABLE, WORKSPACE, checkout

DEFS_VARIABLE: Final = "PLATFORM_DEFS"


def is_project(folder: Path) -> bool:
    """Return True if a folder contains `workspace.yaml` and `defs/`."""
    return (folder / WORKSPACE).is_file() and (folder / "defs").is_dir()


def adopt(environ: MutableMapping[str, str], folder: Path) -> None:
    """If a folder is a project, apply its `.env`, and set `PLATFORM_DEFS` and `PLATFORM_HOME`. Variables that are
    already set are unchanged.

    Dagster's own commands read `.env` in the same way. This function does nothing in any other folder. It also does
    nothing if `PLATFORM_DEFS` points to other declarations, because the data for those declarations is not in this
    project.
    """
    defs = environ.get(DEFS_VARIABLE)
    if not is_project(folder) or (defs and Path(defs).resolve() != (folder / "defs").resolve()):
        return
    if (folder / ".env").is_file():
        from dotenv import dotenv_values

        for name, value in dotenv_values(folder / ".env").items():
            if value is not None:
                environ.setdefault(name, value)
    environ.setdefault(DEFS_VARIABLE, str(folder / "defs"))
    environ.setdefault(HOME_VARIABLE, str(folder / ".platform"))


def workspace_file(environ: Mapping[str, str]) -> Path:
    """Return the Dagster workspace file next to the folder that contains the declarations. If there is no such file,
    return the workspace file of the checkout.

    Raises ConfigurationError if there is no checkout either.
    """
    given = environ.get(DEFS_VARIABLE)
    if given and (own := Path(given).parent / WORKSPACE).is_file():
        return own
    return checkout(DEFS_VARIABLE) / WORKSPACE
