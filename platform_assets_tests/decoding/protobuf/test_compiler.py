"""Schemas from a registry are compiled in a separate folder, and hostile schemas are refused permanently."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from platform_assets.decoding.avro.types import BadSchema
from platform_assets.decoding.protobuf import compiler
from platform_assets.decoding.protobuf.compiler import descriptor_set
from platform_assets.errors import ConfigurationError, Retryable, SchemaCompilerError
from platform_assets_tests.support.proto_data import proto

CIRCLE = {"a.proto": proto(imports=("b.proto",)), "b.proto": proto(imports=("a.proto",))}


def test_a_schema_comes_with_what_it_imports_in_order() -> None:
    money = proto("message Money { int64 units = 1; }")
    imports = ("shop/money.proto", "google/protobuf/timestamp.proto")
    order = proto("message Order { Money price = 1; google.protobuf.Timestamp at = 2; }", imports=imports)
    made = descriptor_pb2.FileDescriptorSet.FromString(
        descriptor_set(order, {"shop/money.proto": money, "google/protobuf/timestamp.proto": "not the real one"})
    )
    assert {file.name for file in made.file[:-1]} == {"shop/money.proto", "google/protobuf/timestamp.proto"}
    assert made.file[-1].name == compiler.MAIN
    assert [message.name for message in made.file[-1].message_type] == ["Order"]


@pytest.mark.parametrize(
    ("text", "references", "message"),
    [
        ("message {", {}, r"registered\.proto:1:9: Expected message name"),
        (proto("message A {}", imports=("../../etc/passwd",)), {}, r"not allowed in the virtual path"),
        (proto("message A {}", imports=("/etc/passwd",)), {}, r"/etc/passwd: "),
        (proto("message A {}", imports=("other.proto",)), {}, r"other\.proto: File not found"),
        (proto("message A {}", imports=(compiler.MAIN,)), {}, r"recursively imports itself"),
        (proto("message A {}", imports=("a.proto",)), CIRCLE, "recursively imports itself"),
        (proto("message A { " * 5_000 + "}" * 5_000), {}, "maximum recursion limit"),
        (proto("message A {}"), {"../up.proto": ""}, r"'\.\./up\.proto' is not a valid name"),
        (proto("message A {}"), {"/etc/up.proto": ""}, "is not a valid name"),
        (proto("message A {}"), {"a/./b.proto": ""}, "is not a valid name"),
        (proto("message A {}"), {"a\\b.proto": ""}, "is not a valid name"),
        (proto("message A {}"), {"--python_out=x.proto": ""}, "is not a valid name"),
        (proto("message A {}"), {"a.proto\n": ""}, "is not a valid name"),
        (proto("message A {}"), {compiler.MAIN: ""}, "is not a valid name"),
        (proto("message A {}"), {"a" * 300 + ".proto": ""}, "is not a valid name"),
        (proto("message A {}"), {"a.proto": "", "a.proto/b.proto": ""}, "is both a file and a folder"),
        (proto("message A {}"), {"a.proto/b.proto": "", "a.proto": ""}, "is both a file and a folder"),
        (proto("//" + "x" * compiler.MOST_TEXT), {}, "more than 4194304 bytes"),
        (proto("// \ud800"), {}, "is not UTF-8"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_what_cannot_be_compiled_is_refused_for_good(text: str, references: dict[str, str], message: str) -> None:
    with pytest.raises(BadSchema, match=message) as caught:
        descriptor_set(text, references)
    assert "/tmp" not in str(caught.value).replace("/tmp/pytest", "")


def test_the_compiler_has_neither_secrets_nor_modules_of_the_folder_it_is_started_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    (tmp_path / "grpc_tools.py").write_text("raise RuntimeError('of the wrong folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCHEMA_REGISTRY_PASSWORD", "hunter2")
    monkeypatch.setattr(
        compiler, "_RUN", f"import os; open({str(seen)!r}, 'w').write(repr(dict(os.environ)))\n" + compiler._RUN
    )
    descriptor_set(proto("message Seen { int32 unlike_any_other = 1; }"), {})
    assert "hunter2" not in seen.read_text()


@pytest.mark.parametrize(
    ("ending", "raised", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", BadSchema, "signal 11"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", SchemaCompilerError, "exit code -9"),
        ("raise OSError('no room')", SchemaCompilerError, "exit code 1, OSError: no room"),
        ("import sys; sys.modules['grpc_tools'] = None", ConfigurationError, "install the platform's"),
        ("import time; time.sleep(600)", SchemaCompilerError, "TimeoutExpired"),
        ("import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 5))\nwhile True: pass", BadSchema, "signal 24"),
    ],
)
def test_how_the_compiler_ends_decides_whether_it_is_tried_again(
    ending: str, raised: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "_RUN", ending + "\n" + compiler._RUN)
    monkeypatch.setattr(compiler, "WAIT_SECONDS", 2.0 if "sleep" in ending else 120.0)
    with pytest.raises(raised, match=message):
        descriptor_set(proto(f"message M{abs(hash(ending))} {{}}"), {})
    assert issubclass(SchemaCompilerError, Retryable)
    monkeypatch.setattr(compiler, "_RUN", compiler._RUN.removeprefix(ending + "\n"))
    if raised is SchemaCompilerError:
        monkeypatch.setattr(compiler, "WAIT_SECONDS", 120.0)
        assert descriptor_set(proto(f"message M{abs(hash(ending))} {{}}"), {})
