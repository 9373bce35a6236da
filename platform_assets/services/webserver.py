"""Dagster's web server with `web_guard`. It accepts the options of `dagster-webserver`.

`up`, compose.yaml and kubernetes/ start this web server. `PLATFORM_UI_HOSTS` lists the hosts by which browsers reach
it.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from dagster_webserver import cli

from platform_assets.services.errors import PlatformError
from platform_assets.services.web_guard import HOSTS_VARIABLE, AllowedHosts, Guard

_BUILDER: Final = "create_app_from_workspace_process_context"


def main() -> None:
    """Run the web server until it is ended."""
    try:
        allowed = AllowedHosts.parse(os.environ.get(HOSTS_VARIABLE, ""))
    except PlatformError as error:
        sys.exit(str(error))
    build = getattr(cli, _BUILDER)

    def guarded(*args: Any, **options: Any) -> Guard:
        return Guard(build(*args, **options), allowed)

    # Dagster has no hook for this. It looks the name up when it serves, and a test queries the running server.
    setattr(cli, _BUILDER, guarded)
    cli.dagster_webserver(auto_envvar_prefix="DAGSTER_WEBSERVER")


if __name__ == "__main__":
    main()
