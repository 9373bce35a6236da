"""Settings of an object store from the environment: requirements that are checked, and options for delta-rs.

Endpoint and credentials have the names that delta-rs, Spark's s3a and others use (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, …).
Each process reads its own environment: none of them is passed on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from platform_assets.errors import ConfigurationError

_ROOT: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_=-][A-Za-z0-9._=-]*)+")
_TRUE: Final = frozenset({"1", "true", "yes", "on", "y"})
_UNSAFE: Final = ("AWS_S3_ALLOW_UNSAFE_RENAME", "ALLOW_UNSAFE_RENAME")
_LOCKS: Final = "AWS_S3_LOCKING_PROVIDER"
_PUT: Final = ("AWS_CONDITIONAL_PUT", "CONDITIONAL_PUT")
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3")
_OPTIONS: Final = {
    "conditional_put": "etag",
    # Limits on retries after temporary failures: an error that names the store is better than a long wait.
    "max_retries": "6",
    "retry_timeout": "40s",
    "connect_timeout": "5s",
}


def for_delta() -> dict[str, str]:
    """Return delta-rs's options in addition to its environment; they contain no secrets."""
    return dict(_OPTIONS)


def checked(root: str, environment: Mapping[str, str]) -> str:
    """Return the address of a lake in an object store, without a slash at its end.

    Raises ConfigurationError if it is not `s3://bucket/prefix`, if no region is given, if a plain endpoint is not allowed, and if a
    setting would let commits of two writers overwrite one another.
    """
    address = root.rstrip("/")
    if not _ROOT.fullmatch(address):
        raise ConfigurationError(
            f"LAKE_ROOT {root!r} is not s3://bucket/prefix: a bucket has 3 to 63 of the characters a-z 0-9 . -, and a prefix has "
            "parts of the characters A-Z a-z 0-9 . _ = - between slashes, none of which starts with '.'. Correct LAKE_ROOT."
        )
    for name in _UNSAFE:
        if environment.get(name, "").lower() in _TRUE:
            raise ConfigurationError(
                f"{name} is set, so two commits to a table can overwrite one another: unset it. LAKE_ROOT {address} needs "
                "conditional writes, which S3 and most compatible stores support."
            )
    for name in _PUT:
        if environment.get(name, "etag").lower() != "etag":
            raise ConfigurationError(
                f"{name} is {environment[name]!r}, but commits to {address} need 'etag': unset it."
            )
    if environment.get(_LOCKS):
        raise ConfigurationError(
            f"{_LOCKS} is set, but commits to {address} are conditional writes, and writers of the two kinds overwrite "
            "one another. Unset it for every writer of this lake."
        )
    if not (environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")):
        raise ConfigurationError(
            f"LAKE_ROOT is {address}, but AWS_REGION is not set. Set it to the bucket's region or, if the store of "
            "AWS_ENDPOINT_URL has no regions, to any, such as us-east-1."
        )
    plain = [name for name in _ENDPOINTS if environment.get(name, "").lower().startswith("http://")]
    if plain and environment.get("AWS_ALLOW_HTTP", "").lower() not in _TRUE:
        raise ConfigurationError(
            f"{plain[0]} is an http:// address, so others can read records in transit: set AWS_ALLOW_HTTP=true if that "
            "is intended."
        )
    return address
