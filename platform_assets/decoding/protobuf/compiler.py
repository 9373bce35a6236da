"""Compilation of .proto files to descriptors with protoc, which comes with grpcio-tools.

The files come from a registry, so they are not trusted. protoc runs in a separate process and folder, without this
process's environment, and with limits on time and memory. File names are checked before they become paths. protoc reads
only files in that folder and the types that come with Protobuf, and it runs nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from platform_assets.decoding.avro.types import BadSchema
from platform_assets.errors import ConfigurationError, SchemaCompilerError

MOST_TEXT: Final = 4 << 20
"""Maximum number of bytes in a schema, including all schemas that it refers to."""
MOST_NAME: Final = 200
MAIN: Final = "registered.proto"
"""Name of the schema's own file, which also appears in errors. No reference may have this name."""
OWN_TYPES: Final = "google/protobuf/"
"""Prefix of the names of Protobuf's own files. The compiler's copies of these files are always used, even if a registry
has files with these names."""
WAIT_SECONDS: Final = 120.0
"""Limit on wall-clock time. It is far above the limit on processor time, so only a stalled machine reaches it."""
_SECONDS, _MEMORY = 20, 2 << 30
_DONE, _REFUSED, _MISSING = 10, 11, 12
_RUN: Final = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({_SECONDS}, {_SECONDS + 5}))
resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY}, {_MEMORY}))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    from grpc_tools import protoc
except ImportError:
    sys.exit({_MISSING})
from importlib.resources import files
own = f"-I{{files('grpc_tools') / '_proto'}}"
sys.exit({_REFUSED} if protoc.main(["protoc", own, *sys.argv[1:]]) else {_DONE})
"""
_NAME: Final = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*/)*[A-Za-z0-9_][A-Za-z0-9_.-]*\.proto")
_LOGGED: Final = re.compile(r"WARNING: All log messages|[IWEF][0-9]{4} ")
"""Pattern for lines from the compiler's own logging, which appear between the compiler's messages about a schema."""
_KILLED: Final = (-9, -15)
"""Signals that come from outside the compiler, for example if the machine is short of memory. When the compiler itself
crashes, it ends with other signals."""
_NEEDED: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")
"""Environment variables with which Python finds its modules. Only these variables are passed to the compiler's process.
"""


def descriptor_set(text: str, references: Mapping[str, str]) -> bytes:
    """Return the files of a schema as a serialized FileDescriptorSet: first the files that the schema imports, then the
    schema's own file.

    Raises BadSchema (permanent) if the text is not a schema or a reference is missing, SchemaCompilerError (retryable)
    if the compiler did not finish, and ConfigurationError if there is no compiler.
    """
    return _compiled(text, tuple(references.items()))


@lru_cache(maxsize=128)
def _compiled(text: str, references: tuple[tuple[str, str], ...]) -> bytes:
    files = {MAIN: text}
    for name, other in references:
        if len(name) > MOST_NAME or _NAME.fullmatch(name) is None or name == MAIN:
            raise BadSchema("$", f"{name[:MOST_NAME]!r} is not a valid name of an imported .proto file")
        if not name.startswith(OWN_TYPES):
            files[name] = other
    if sum(len(each.encode(errors="replace")) for each in files.values()) > MOST_TEXT:
        raise BadSchema("$", f"it has more than {MOST_TEXT} bytes, including the files that it imports")
    with tempfile.TemporaryDirectory(prefix="proto-") as folder:
        sources = Path(folder) / "sources"
        _write(sources, files)
        return _run(sources, Path(folder) / "set")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise BadSchema("$", f"{name!r} is both a file and a folder among the imported files") from error
        except UnicodeEncodeError as error:
            raise BadSchema("$", f"{name!r} is not UTF-8") from error


def _run(sources: Path, made: Path) -> bytes:
    arguments = [f"-I{sources}", "--include_imports", f"--descriptor_set_out={made}", MAIN]
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _RUN, *arguments],
            cwd="/",
            env={name: os.environ[name] for name in _NEEDED if name in os.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SchemaCompilerError(type(error).__name__) from error
    said = [
        line
        for line in done.stderr.decode(errors="replace").replace(f"{sources}/", "").splitlines()
        if line.strip() and not _LOGGED.match(line)
    ]
    if done.returncode == _DONE:
        return made.read_bytes()
    if done.returncode == _MISSING:
        raise ConfigurationError(
            "Protobuf schemas need the compiler of package grpcio-tools, which this Python lacks: install the "
            f"platform's dependencies for {sys.executable}"
        )
    if done.returncode == _REFUSED:
        raise BadSchema("$", said[0] if said else "protoc rejected the schema without an error message")
    if done.returncode < 0 and done.returncode not in _KILLED:
        raise BadSchema("$", f"protoc was terminated by signal {-done.returncode}")
    raise SchemaCompilerError(f"exit code {done.returncode}" + (f", {said[-1][:200]}" if said else ""))
