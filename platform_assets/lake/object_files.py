"""Files of a lake in an object store, using the same library as delta-rs, so that both have the same configuration and
errors.

The endpoint and the credentials come from the environment of the process (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID` and
others). Spark workers use their own environment, so no address, plan or error contains these values.
"""

from __future__ import annotations

import errno
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

import obstore
import pyarrow as pa
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from platform_assets.errors import ConfigurationError
from platform_assets.lake.store_answers import answer_of, has_no_bucket, is_denied

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import S3Config


# Settings of an object store from the environment: requirements that are checked, and options for delta-rs.
#
# Endpoint and credentials have the names that delta-rs, Spark's s3a and others use (`AWS_ENDPOINT_URL`,
# `AWS_ACCESS_KEY_ID`, …). Each process reads its own environment: none of them is passed on.

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
    """Return the options that delta-rs needs in addition to its environment; they contain no secrets."""
    return dict(_OPTIONS)


def checked(root: str, environment: Mapping[str, str]) -> str:
    """Return the address of a lake in an object store, without a slash at its end.

    Raises ConfigurationError if the address is not `s3://bucket/prefix`, if no region is set, if the endpoint is plain
    HTTP and this is not allowed, or if a setting would let commits of two writers overwrite one another.
    """
    address = root.rstrip("/")
    if not _ROOT.fullmatch(address):
        raise ConfigurationError(
            f"LAKE_ROOT {root!r} is not s3://bucket/prefix: a bucket name has 3 to 63 of the characters a-z 0-9 "
            f". -, and a prefix consists "
            "of parts separated by slashes, each made of the characters A-Z a-z 0-9 . _ = - and not starting "
            "with '.'. Correct LAKE_ROOT."
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
            f"{_LOCKS} is set, but commits to {address} are conditional writes, and writers with and without this lock overwrite "
            "one another. Unset it for every writer of this lake."
        )
    if not (environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")):
        raise ConfigurationError(
            f"LAKE_ROOT is {address}, but AWS_REGION is not set. Set it to the bucket's region or, if the store at "
            "AWS_ENDPOINT_URL has no regions, to any value, such as us-east-1."
        )
    plain = [name for name in _ENDPOINTS if environment.get(name, "").lower().startswith("http://")]
    if plain and environment.get("AWS_ALLOW_HTTP", "").lower() not in _TRUE:
        raise ConfigurationError(
            f"{plain[0]} is an http:// address, so others can read records in transit: set AWS_ALLOW_HTTP=true if that "
            "is intended."
        )
    return address


ATTEMPTS: Final = 6
"""Maximum number of attempts, and below the time limit, for requests that fail temporarily."""
PATIENCE: Final = timedelta(seconds=40)
PART_BYTES: Final = 8 << 20
"""Size of the parts in which a file is uploaded while it is being written."""
SLOW: Final = timedelta(minutes=10)
"""Time limit of a request that sends a part of a large file, long enough for a slow line. Other requests have obstore's
default of 30 s."""
_PARTS_AT_ONCE: Final = 2
"""Maximum number of parts of one large file in flight. Several such files are uploaded at the same time, and all their
parts are in memory."""
_DELETED_AT_ONCE: Final = 1_000
"""Maximum number of names in a delete request (S3's limit)."""


@dataclass(frozen=True, slots=True)
class ObjectFiles:
    """Files in a folder of a bucket. Such a folder is only a prefix of keys."""

    uri: str

    def read(self, name: str) -> bytes:
        """Implement `Files.read`."""
        with self._asking(name) as key:
            return bytes(obstore.get(self._store, key).bytes())

    def size(self, name: str) -> int:
        """Implement `Files.size`."""
        with self._asking(name) as key:
            return obstore.head(self._store, key)["size"]

    def stamp(self, name: str) -> str:
        """Implement `Files.stamp`."""
        with self._asking(name) as key:
            found = obstore.head(self._store, key)
        return f"{found['e_tag']}-{found['size']}-{found['last_modified'].timestamp()}"

    def stamps(self, below: str) -> dict[str, str]:
        """Implement `Files.stamps`, with one listing. The time only matters if there is no entity tag; an entity tag
        changes with the content."""
        inside = len(self._key("")) + 1
        return {
            item["path"][inside:]: f"{item['e_tag'] or item['last_modified'].timestamp()} {item['size']}"
            for item in self._all(below)
        }

    def files(self, below: str) -> list[str]:
        """Implement `Files.files`."""
        with self._asking(below) as key:
            found = obstore.list_with_delimiter(self._store, key)["objects"]
            return [_last(item["path"]) for item in found if self._is_file(item)]

    def folders(self, below: str) -> list[str]:
        """Implement `Files.folders`."""
        with self._asking(below) as key:
            found = obstore.list_with_delimiter(self._store, key)["common_prefixes"]
        return [_last(path) for path in found]

    def open(self, name: str) -> pa.NativeFile:
        """Implement `Files.open`. Each read from a position is one request."""
        with self._asking(name) as key:
            found = obstore.head(self._store, key)
        return pa.PythonFile(_Download(self, name, found["size"], found["e_tag"]), "r")

    def create(self, name: str) -> pa.NativeFile:
        """Implement `Files.create`."""
        with self._asking(name) as key:
            return pa.PythonFile(
                _Upload(self, name, obstore.open_writer(self._store, key, buffer_size=PART_BYTES)), "w"
            )

    def send(self, name: str, pieces: Iterable[bytes], size: int) -> None:
        """Implement `Files.send`."""
        if size <= PART_BYTES:
            self.write(name, b"".join(pieces))
            return
        with self._asking(name) as key:
            obstore.put(
                _bucket(self._bucket_name, SLOW), key, pieces,
                use_multipart=True, chunk_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE,
            )  # fmt: skip

    def make(self) -> None:
        """Implement `Files.make`: nothing to do."""

    def write(self, name: str, content: bytes) -> None:
        """Implement `Files.write`."""
        with self._asking(name) as key:
            obstore.put(self._store, key, content)

    def write_new(self, name: str, content: bytes) -> bool:
        """Implement `Files.write_new`, by a conditional `PUT`."""
        with self._asking(name) as key:
            try:
                obstore.put(self._store, key, content, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def time(self) -> datetime:
        """Implement `Files.time`, to the second."""
        name = f".time.{uuid4().hex}"
        self.write(name, b"")
        try:
            with self._asking(name) as key:
                return obstore.head(self._store, key)["last_modified"].astimezone(UTC)
        finally:
            self.remove([name])

    def is_case_sensitive(self) -> bool:
        """Implement `Files.is_case_sensitive`."""
        return True

    def copy(self, name: str, to: str) -> None:
        """Implement `Files.copy`."""
        with self._asking(name) as key:
            obstore.copy(self._store, key, self._key(to))

    def written_before(self, moment: datetime, below: str) -> list[str]:
        """Implement `Files.written_before`."""
        inside = len(self._key("")) + 1
        return sorted(item["path"][inside:] for item in self._all(below) if item["last_modified"] < moment)

    def keeps_versions(self) -> bool:
        """Implement `Files.keeps_versions`. A bucket with versioning returns the id of the version that a `PUT`
        created. A bucket with suspended versioning returns the version id `null` when the file is requested, and may
        have other versions."""
        name = f".versions.{uuid4().hex}"
        with self._asking(name) as key:
            made = obstore.put(self._store, key, b"")["version"]
        try:
            with self._asking(name) as key:
                found = obstore.head(self._store, key)["version"]
        finally:
            self.remove([name])
        return made is not None or found is not None

    def remove(self, names: Iterable[str]) -> None:
        """Implement `Files.remove`."""
        for name in names:
            with self._asking(name) as key, suppress(NotFoundError):
                obstore.delete(self._store, key)

    def remove_files(self, names: Iterable[str]) -> None:
        """Implement `Files.remove_files`."""
        left = iter(names)
        while some := [self._key(name) for name in islice(left, _DELETED_AT_ONCE)]:
            with self._asking(""), suppress(NotFoundError):
                obstore.delete(self._store, some)

    def delete(self) -> None:
        """Implement `Files.delete`."""
        with suppress(OSError):
            inside = len(self._key("")) + 1
            self.remove_files([item["path"][inside:] for item in self._all("")])

    def part(self, name: str, start: int, end: int, e_tag: str | None) -> bytes:
        """Return the bytes `[start, end)` of the file with this entity tag. Raises OSError if the file has been
        replaced."""
        with self._asking(name) as key:
            if e_tag is None:
                # Some stores have no tag for files that were added in other ways.
                return bytes(obstore.get_range(self._store, key, start=start, end=end))
            return bytes(obstore.get(self._store, key, options={"range": (start, end), "if_match": e_tag}).bytes())

    @contextmanager
    def asking(self, name: str) -> Iterator[None]:
        """Wrap a block that requests a file from the store. Raises OSError."""
        try:
            yield
        except (NotFoundError, FileNotFoundError) as e:
            if has_no_bucket(str(e)):
                raise OSError(errno.EIO, _reason(e), f"{self.uri}/{name}") from e
            raise FileNotFoundError(errno.ENOENT, "the object does not exist", f"{self.uri}/{name}") from e
        except (PermissionDeniedError, UnauthenticatedError) as e:
            raise PermissionError(errno.EACCES, _reason(e), f"{self.uri}/{name}") from e
        except PreconditionError as e:
            raise OSError(errno.ESTALE, "another process wrote a file there meanwhile", f"{self.uri}/{name}") from e
        except BaseError as e:
            raise OSError(errno.EIO, _reason(e), f"{self.uri}/{name}") from e
        except OSError as e:
            # obstore's writers raise the store's answer to a file's only or last part as an OSError without a number.
            number = errno.EACCES if is_denied(str(e)) else errno.EIO
            raise OSError(number, _reason(e), f"{self.uri}/{name}") from e

    @contextmanager
    def _asking(self, name: str) -> Iterator[str]:
        with self.asking(name):
            yield self._key(name)

    def _all(self, below: str) -> Iterator[ObjectMeta]:
        with self._asking(below) as key:
            for some in obstore.list(self._store, key):
                yield from filter(self._is_file, some)

    def _is_file(self, item: ObjectMeta) -> bool:
        """Return True if a listed object is a file, not a directory marker. A directory marker is an empty object whose
        key ends with a slash; Spark's s3a and store consoles create such objects. A listing has the marker's name
        without the slash, under which no object exists."""
        if item["size"]:
            return True
        try:
            obstore.head(self._store, item["path"])
        except (NotFoundError, FileNotFoundError):
            return False
        return True

    def _key(self, name: str) -> str:
        prefix = self.uri.removeprefix("s3://").partition("/")[2]
        return f"{prefix}/{name}" if name else prefix

    @property
    def _bucket_name(self) -> str:
        return self.uri.removeprefix("s3://").partition("/")[0]

    @property
    def _store(self) -> S3Store:
        return _bucket(self._bucket_name)


@lru_cache(maxsize=8)
def _bucket(name: str, timeout: timedelta | None = None) -> S3Store:
    """Return a client for a bucket. The client keeps connections open, and each request may take `timeout`."""
    return S3Store(
        name,
        retry_config={"max_retries": ATTEMPTS, "retry_timeout": timeout or PATIENCE},
        # Given as `client_options`, it would replace those from the environment.
        config={} if timeout is None else cast("S3Config", {"timeout": f"{timeout.seconds} seconds"}),
    )


def _reason(error: Exception) -> str:
    return answer_of(str(error)) or str(error).partition("\n")[0]


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


class _Download(io.RawIOBase):
    """A file in the store, read piece by piece."""

    def __init__(self, files: ObjectFiles, name: str, size: int, e_tag: str | None) -> None:
        self._files, self._name, self._size, self._e_tag, self._at = files, name, size, e_tag, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        end = self._size if size is None or size < 0 else min(self._at + size, self._size)
        if end <= self._at:
            return b""
        start, self._at = self._at, end
        return self._files.part(self._name, start, end, self._e_tag)


class _Upload(io.RawIOBase):
    """A file in the store, written part by part."""

    def __init__(self, files: ObjectFiles, name: str, writer: Any) -> None:
        self._files, self._name, self._writer, self._at = files, name, writer, 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, content: Any, /) -> int:
        piece = bytes(content)
        with self._files.asking(self._name):
            self._writer.write(piece)
        self._at += len(piece)
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            super().close()
            with self._files.asking(self._name):
                self._writer.close()
