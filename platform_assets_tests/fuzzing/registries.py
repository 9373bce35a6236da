"""Answers from a hostile schema registry: bodies and schemas. Each case ends in values, dead letters or one of the
platform's errors."""

from __future__ import annotations

import json
import os
import random
import socketserver
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from platform_assets.decoding.avro.types import BadSchema, OtherRecord
from platform_assets.decoding.formats import decoder_of
from platform_assets.decoding.registry import client, readers, wire
from platform_assets.decoding.registry.cache import AVRO, JSON, PROTOBUF, Registered
from platform_assets.decoding.registry.decoder import RegistryDecoder
from platform_assets.decoding.schema import schema_of_ddl
from platform_assets.errors import PlatformError
from platform_assets.lake.files import files_below
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.fuzzing.hostile_schemas import DECLARED, HostileSchemas
from platform_assets_tests.fuzzing.target import Case, Target, Wrong, check_message, damaged
from platform_assets_tests.support.decoding import assert_same

_LEVELS_OF_REFERENCES: Final = 3
_SECONDS: Final = 1.0
"""Timeout for a whole answer, short so that a case with a slow registry ends soon."""


class _Registry(socketserver.ThreadingTCPServer):
    """Server that sends the bytes of the case's answer unchanged."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: Callable[[str], bytes] = lambda path: b""

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that disconnect."""


class _Handler(socketserver.StreamRequestHandler):
    server: _Registry
    timeout = 5

    def handle(self) -> None:
        line = self.rfile.readline(1 << 16)
        while self.rfile.readline(1 << 16) not in (b"", b"\r\n"):
            pass
        path = line.split(b" ")[1].decode() if line.count(b" ") > 1 else ""
        self.wfile.write(self.server.answers(path))


class _Fuzzer:
    def __init__(self, registry: _Registry, folder: Path) -> None:
        self._registry, self._folder = registry, folder
        self._schemas = HostileSchemas()

    def case(self, rng: random.Random) -> None:
        """Run a case of a random kind."""
        rng.choice(
            (
                self.http,
                self.http,
                self.avro,
                self.avro,
                self.avro,
                self.events,
                self.events,
                self.json,
                self.json,
                self.json,
                self.heads,
                self.cached,
            )
        )(rng)
        if rng.random() < 0.04:
            self.protobuf(rng)

    # --- bodies and headers ------------------------------------------------------------------------------------

    def http(self, rng: random.Random) -> None:
        """Send arbitrary bytes in place of an answer."""
        kind = rng.choice((AVRO, JSON, PROTOBUF))
        known: dict[str, bytes] = {}

        def answer(path: str) -> bytes:
            if path not in known:
                known[path] = self._response(rng, kind)
            return known[path]

        self._registry.answers = answer
        decoder = self._decoder(rng, AVRO if kind == PROTOBUF else kind)
        head = b"\0" + rng.choice((1, 1, 7, (1 << 31) - 1)).to_bytes(4, "big")
        self._decoded(
            decoder, [head + b"\x02\x02a\x00", None, b"", head + b'{"id":1,"name":"x"}', head + rng.randbytes(9)]
        )

    def _response(self, rng: random.Random, kind: str) -> bytes:
        body = self._body(rng, kind)
        status = rng.choice(
            (
                b"200 OK",
                b"200 OK",
                b"200 OK",
                b"404 Not Found",
                b"500 x",
                b"301 Moved",
                b"99 x",
                b"abc",
                b"200",
                b"429 x",
            )
        )
        headers = [b"Content-Type: application/json"]
        length = rng.random()
        if length < 0.75:
            headers.append(b"Content-Length: %d" % len(body))
        elif length < 0.85:
            headers.append(
                rng.choice(
                    (
                        b"Content-Length: -1",
                        b"Content-Length: 99999999999999",
                        b"Content-Length: x",
                        b"Content-Length: 1",
                    )
                )
            )
        else:
            headers.append(b"Transfer-Encoding: chunked")
            cut = rng.randint(0, len(body))
            body = (
                b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:cut], body[cut:]) if part)
                + b"0\r\n\r\n"
            )
        if rng.random() < 0.2:
            headers.append(
                b"Content-Encoding: " + rng.choice((b"gzip", b"deflate", b"br", b"zstd", b"gzip, gzip, gzip", b"x"))
            )
            body = _bomb(rng) if rng.random() < 0.5 else body
        if rng.random() < 0.1:
            headers += [b"X-%d: y" % n for n in range(rng.choice((1, 200)))]
        if rng.random() < 0.1:
            headers.append(b"Location: " + rng.choice((b"http://127.0.0.1:1/", b"file:///etc/passwd", b"\xff")))
        whole = b"HTTP/1.1 " + status + b"\r\n" + b"\r\n".join(headers) + b"\r\n\r\n" + body
        return damaged(rng, whole, self._schemas.corpus, 3) if rng.random() < 0.25 else whole

    def _body(self, rng: random.Random, kind: str) -> bytes:
        if rng.random() < 0.1:
            return rng.choice(
                (
                    b"",
                    b"[]",
                    b"null",
                    b"{",
                    b"[" * 200_000,
                    b'{"a":' * 100_000,
                    b"1" * 10_000,
                    b'"' + b"x" * 5_000_000 + b'"',
                    b"\xff\xfe",
                )
            )
        schema: Any = {AVRO: self._schemas.avro, JSON: self._schemas.json, PROTOBUF: self._schemas.protobuf}[kind](rng)
        document: dict[str, Any] = {"schema": schema, "schemaType": kind, "id": 1}
        if rng.random() < 0.3:
            document["references"] = _references(rng)
        for name in list(document):
            if rng.random() < 0.06:
                document[name] = rng.choice((None, 1, True, [], {}, "x" * 300, "\ud800", -1, 1e308))
        if rng.random() < 0.1:
            document = {
                "error_code": rng.choice((40403, 40401, 50001, "x", None)),
                "message": "<img src=x onerror=alert(1)>\x1b[2J",
            }
        return json.dumps(document).encode(errors="surrogatepass")

    def _decoder(self, rng: random.Random, kind: str) -> RegistryDecoder:
        options: dict[str, Any] = {"registry": True}
        if kind == AVRO:
            spec = FormatSpec("avro", {**options, "schema": DECLARED})
        else:
            spec = FormatSpec("json", {**options, "schema": "id BIGINT, name STRING"})
        kept = files_below(self._folder / str(rng.getrandbits(40))) if rng.random() < 0.2 else None
        made = decoder_of(spec, kept)
        assert isinstance(made, RegistryDecoder)
        return made

    def _decoded(self, decoder: Any, values: list[bytes | None]) -> None:
        block = pa.array(values, pa.binary())
        try:
            found = decoder.decode(block)
        except PlatformError as error:
            check_message(error)
            return
        found.columns.validate(full=True)
        found.dead.validate(full=True)
        if "failed" in found.dead["reason"].to_pylist():
            raise Wrong(f"failed: {found.dead.to_pylist()}")

    # --- schemas -----------------------------------------------------------------------------------------------

    def avro(self, rng: random.Random) -> None:
        """Test an Avro schema with arbitrary values."""
        text = self._schemas.avro(rng)
        text = (
            damaged(rng, text.encode(errors="replace"), self._schemas.corpus).decode(errors="replace")
            if rng.random() < 0.3
            else text
        )
        others = {f"n.X{n}": self._schemas.avro(rng) for n in range(rng.choice((0, 0, 2)))}
        declared = decoder_of(FormatSpec("avro", {"schema": DECLARED, "registry": True}))
        assert isinstance(declared, RegistryDecoder)
        self._read(declared.reader, Registered(AVRO, text, others), rng)

    def events(self, rng: random.Random) -> None:
        """Test the schema of change events whose row has an Avro schema. The fast and the exact path must agree."""
        row = self._schemas.avro(rng)
        named = rng.choice(
            (
                "",
                '"connect.name":"org.apache.kafka.connect.data.Decimal",',
                '"connect.parameters":[],"connect.type":"int8",',
            )
        )
        row = row.replace('"logicalType"', f'{named}"logicalType"')
        parts = [f'{{"name":"after","type":["null",{row}]}}', '{"name":"op","type":"string"}']
        if rng.random() < 0.3:
            parts.append(f'{{"name":"source","type":{self._schemas.avro(rng)}}}')
        text = f'{{"type":"record","name":"Envelope","fields":[{",".join(parts)}]}}'
        ddl = "id BIGINT, name STRING, more STRING, x0 DECIMAL(9,2), x1 TIMESTAMP, x2 ARRAY<STRUCT<y: INT>>"
        declared = decoder_of(FormatSpec("debezium", {"schema": ddl, "registry": True}))
        assert isinstance(declared, RegistryDecoder)
        try:
            decoder = declared.reader.decoder_for(Registered(AVRO, text, {}))
        except BadSchema:
            return
        heads = (b"\0", b"\2", b"\2\2\2a\0", b"\2\4\2b\2\2c")
        values = [
            head + end for head in heads for end in (b"", b"\2c", b"\2d", rng.randbytes(9), rng.randbytes(40) + b"\2c")
        ]
        block = pa.array([*values, None], pa.binary())
        self._decoded(decoder, block.to_pylist())
        assert_same(decoder.decode(block), decoder.decode_exactly(block))

    def json(self, rng: random.Random) -> None:
        """Test a JSON Schema."""
        text = self._schemas.json(rng)
        text = (
            damaged(rng, text.encode(errors="replace"), self._schemas.corpus).decode(errors="replace")
            if rng.random() < 0.2
            else text
        )
        others = {
            rng.choice(("other", "http://127.0.0.1:1/x", "file:///etc/passwd", "#", "")): self._schemas.json(rng)
            for _ in range(rng.choice((0, 1)))
        }
        reader = readers.JsonReader(decoder_of(FormatSpec("json", {"schema": "id BIGINT, name STRING"})))
        self._read(reader, Registered(JSON, text, others), rng)

    def protobuf(self, rng: random.Random) -> None:
        """Test a Protobuf file. A separate compiler reads the file, which is slow."""
        text = self._schemas.protobuf(rng)
        others = {}
        for _ in range(rng.choice((0, 0, 1, 3))):
            others[
                rng.choice(
                    (
                        "a.proto",
                        "b.proto",
                        "../x.proto",
                        "/etc/x.proto",
                        "registered.proto",
                        "a/b.proto",
                        "a",
                        "x" * 300 + ".proto",
                    )
                )
            ] = self._schemas.protobuf(rng)
        reader = readers.ProtobufReader("shop.R", schema_of_ddl("id BIGINT, name STRING"), 1 << 20)
        self._read(reader, Registered(PROTOBUF, text, others), rng)

    def _read(self, reader: readers.Reader, schema: Registered, rng: random.Random) -> None:
        try:
            decoder = reader.decoder_for(schema)
        except (BadSchema, OtherRecord) as error:
            check_message(error) if not isinstance(error, BadSchema) else None
            return
        except PlatformError as error:
            check_message(error)
            return
        values: list[bytes | None] = [
            b"",
            None,
            b"\0",
            b"\0\x08\x01",
            b'{"id":1,"name":"x"}',
            b'{"id":1,"a":{"a":{"a":[1,2]}}}',
            b"\x02\x02a\x00",
        ]
        values += [rng.randbytes(rng.randint(1, 40)) for _ in range(4)]
        self._decoded(decoder, values)

    # --- schema ids, and stored schemas --------------------------------------------------------------------------

    def heads(self, rng: random.Random) -> None:
        """Test the first bytes of values, and the headers of records."""
        values = [
            rng.choice(
                (
                    None,
                    b"",
                    b"\0",
                    rng.randbytes(rng.randint(1, 20)),
                    bytes([rng.randrange(4)]) + rng.randbytes(rng.randint(3, 20)),
                )
            )
            for _ in range(9)
        ]
        block = pa.array(values, pa.binary())
        id_from: Any = rng.choice(("prefix", "header", "apicurio", "apicurio_global"))
        fast, exact = wire.heads_of(block, id_from), wire.heads_exactly(block, id_from)
        keys = [[heads.key(number) for number in heads.numbers.tolist()] for heads in (fast, exact)]
        if keys[0] != keys[1]:
            raise Wrong(f"heads: {keys} of {values!r} by {id_from}")
        names = ("__value_schema_id", "__key_schema_id", "apicurio.value.contentId", "apicurio.value.globalId", "x", "")
        lists = [
            rng.choice(
                (
                    None,
                    [
                        {
                            "key": rng.choice(names),
                            "value": rng.choice((None, b"", b"\0" * 5, b"\1" * 17, rng.randbytes(8))),
                        }
                        for _ in range(rng.randint(0, 4))
                    ],
                )
            )
            for _ in values
        ]
        kind = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
        framed = wire.framed(block, pa.array(lists, kind), rng.choice(("value", "key")), id_from)
        framed.values.validate(full=True)
        if any(
            value is None and each is not None for value, each in zip(values, framed.values.to_pylist(), strict=True)
        ):
            raise Wrong(f"a null became a value: {values!r}: {framed.values.to_pylist()!r}")

    def cached(self, rng: random.Random) -> None:
        """Damage a file in the lake that stores a schema."""
        content = Registered(AVRO, json.dumps(DECLARED), {"n.X": '"int"'}).to_json().encode()
        text = damaged(rng, content, self._schemas.corpus).decode(errors="replace")
        try:
            made = Registered.from_json(text)
        except (ValueError, RecursionError):
            return
        _ = made.fingerprint
        made.to_json()


def _references(rng: random.Random) -> Any:
    if rng.random() < 0.15:
        return rng.choice((None, 1, "x", {}, [None], [{}], [{"name": 1}], [[]]))
    return [
        {
            "name": rng.choice(("n.X", "a.proto", "..", "x" * 300, "\ud800", f"r{rng.randrange(100)}")),
            "subject": rng.choice(("s", "..", "", "a/b", "a?b#c", "\ud800", "x" * 100_000, f"s{rng.randrange(10)}")),
            "version": rng.choice((1, 2, 0, -1, "1", True, 10**30, 1.0)),
        }
        for _ in range(rng.choice((1, 1, 2, _LEVELS_OF_REFERENCES, 150)))
    ]


def _bomb(rng: random.Random) -> bytes:
    size = rng.choice((1_000, 50_000_000))
    content = zlib.compressobj(9, wbits=31)
    return content.compress(b" " * size) + content.flush()


@contextmanager
def _opened(folder: Path) -> Iterator[Case]:
    folder.mkdir(parents=True, exist_ok=True)
    kept_seconds, kept_environment = client.PATIENT, dict(os.environ)
    with _Registry() as registry:
        thread = threading.Thread(target=registry.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        os.environ["SCHEMA_REGISTRY_URL"] = f"http://127.0.0.1:{registry.server_address[1]}"
        client.RegistryClient.__init__.__defaults__ = (lambda seconds: None, client.Patience(2, _SECONDS))
        try:
            yield _Fuzzer(registry, folder).case
        finally:
            registry.shutdown()
            thread.join()
            client.RegistryClient.__init__.__defaults__ = (time.sleep, kept_seconds)
            os.environ.clear()
            os.environ.update(kept_environment)


TARGET: Final = Target(_opened, cpu_seconds=8, wall_seconds=150, megabytes=1_500)
