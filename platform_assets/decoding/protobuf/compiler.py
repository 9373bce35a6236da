"""From the text of .proto files to their descriptors, by protoc, which comes with grpcio-tools.

The texts are a registry's, so nobody here has written them. protoc runs in a process of its own, without this one's environment, in a
folder of its own, with bounds on time and memory; names of files are checked before they become paths. It reads what is in that
folder, and the types that Protobuf itself comes with, and runs nothing.
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
"""Bytes of a schema with all that it refers to."""
MOST_NAME: Final = 200
MAIN: Final = "registered.proto"
"""The file that has the schema itself, in errors too; no reference may be called so."""
OWN_TYPES: Final = "google/protobuf/"
"""Files that Protobuf comes with: they are taken from the compiler, whatever a registry has under their names."""
WAIT_SECONDS: Final = 120.0
"""Far more than the processor time that it may take: only a machine that does nothing makes it wait as long."""
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
"""Lines that the compiler's own logging writes between what it says of a schema."""
_KILLED: Final = (-9, -15)
"""By somebody else, such as a machine that is short of memory; a compiler that crashes does so by another signal."""
_NEEDED: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")
"""Variables by which Python finds its modules: the only ones that the compiler's process is given."""


def descriptor_set(text: str, references: Mapping[str, str]) -> bytes:
    """The files of a schema as a FileDescriptorSet, serialized: those that it imports first, itself last.

    Raises:
        BadSchema: it is no schema, or needs what it does not come with; for good.
        SchemaCompilerError: the compiler did not come to an end; retryable.
        ConfigurationError: there is no compiler.
    """
    return _compiled(text, tuple(references.items()))


@lru_cache(maxsize=128)
def _compiled(text: str, references: tuple[tuple[str, str], ...]) -> bytes:
    files = {MAIN: text}
    for name, other in references:
        if len(name) > MOST_NAME or _NAME.fullmatch(name) is None or name == MAIN:
            raise BadSchema("$", f"{name[:MOST_NAME]!r} is no name of a .proto file that it may refer to")
        if not name.startswith(OWN_TYPES):
            files[name] = other
    if sum(len(each.encode(errors="replace")) for each in files.values()) > MOST_TEXT:
        raise BadSchema("$", f"it has more than {MOST_TEXT} bytes, with those that it refers to")
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
            raise BadSchema("$", f"{name!r} is the name of a file and of a folder among those it refers to") from error
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
            "schemas of Protobuf need the compiler of package grpcio-tools, which this Python lacks: install what the platform "
            f"depends on for {sys.executable}"
        )
    if done.returncode == _REFUSED:
        raise BadSchema("$", said[0] if said else "protoc refuses it and does not say why")
    if done.returncode < 0 and done.returncode not in _KILLED:
        raise BadSchema("$", f"protoc was ended by signal {-done.returncode} over it")
    raise SchemaCompilerError(f"exit code {done.returncode}" + (f", {said[-1][:200]}" if said else ""))
