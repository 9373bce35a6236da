"""Damaged and hostile backups: a restore follows the manifest exactly, or is refused and changes nothing. No other file
is touched."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from platform_assets.backup import manifest, restoring
from platform_assets.backup.failures import BackupDamagedError
from platform_assets.errors import PlatformError
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets_tests.fuzzing.target import Case, Target, Wrong, check_message, damaged
from platform_assets_tests.support.backed_up import ORDERS, BackedUp

_PATHS: Final = (
    "lake/../../outside/x",
    "lake/raw/../../../outside/x",
    "/etc/passwd",
    "lake//etc/x",
    "lake/raw/orders/../../../../outside/x",
    "dagster/../outside/x",
    "dagster/..",
    "lake/raw/orders",
    "lake/raw",
    "lake",
    "",
    "x",
    "lake/.restoring/a/b",
    "lake/.replaced/a/b",
    "dagster/.restoring/x",
    "dagster/.replaced/x/y",
    "lake/raw/orders/\0",
    "lake/raw/orders/" + "x" * 300,
    "lake/" + "a/" * 3_000 + "b",
    "lake/raw/\n/x",
    "lake/_ledger/x",
    "lake/_ledger/commits",
    "lake/evil/table/x",
    "lake/raw/orders/.",
    "lake\\..\\x",
    "lake/raw/%2e%2e/x",
    "lake/raw/orders/\ud800",
    "lake/raw/orders/_delta_log",
    "lake/raw/orders/_delta_log/00000000000000000000.json/x",
    "dagster/storage",
    "dagster/dagster.yaml/x",
    "lake/raw/ünï/x",
    "lake/state/orders/x",
    "lake/derived//x",
)
_ODD: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    -1,
    1 << 63,
    10**400,
    1.5,
    "",
    "x",
    "0",
    [],
    {},
    [[]],
    "9" * 5_000,
    float("inf"),
)
_LARGE: Final = 64 << 20
Tree = dict[str, str]


def _tree(root: Path) -> Tree:
    """Return each name below a folder with the file's digest, or with the kind of entry if it is not a regular file."""
    found: Tree = {}
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(folder, name)
            key = str(path.relative_to(root))
            if path.is_symlink():
                found[key] = f"link to {os.readlink(path)}"
            elif path.is_file() and path.stat().st_size > _LARGE:
                found[key] = f"{path.stat().st_size} bytes"
            elif path.is_file():
                found[key] = hashlib.sha256(path.read_bytes()).hexdigest()
            elif not path.is_dir():
                found[key] = "special"
    return found


def _read(file: Path) -> bytes:
    """Return the content of a file. Raise OSError if the file is no longer small."""
    if file.is_symlink() or not file.is_file() or file.stat().st_size > _LARGE:
        raise OSError(f"{file} was damaged before")
    return file.read_bytes()


def _linked(source: Path, target: Path) -> None:
    """Copy a folder by creating hard links to its files."""
    shutil.copytree(source, target, copy_function=os.link)


class _Fuzzer:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        made = BackedUp(folder / "made")
        made.seal(3)
        made.load()
        made.report("2026-01-01-00:00")
        self._sound = made.take().folder
        made.seal()
        made.load()
        # Existing content that a restore replaces.
        self._standing = folder / "standing"
        _linked(made.lake.root.path, self._standing / "lake")
        _linked(made.home, self._standing / "dagster")
        self._files = sorted(str(p.relative_to(self._sound)) for p in self._sound.rglob("*") if p.is_file())

    def case(self, rng: random.Random) -> None:
        """Damage a copy of the backup, restore it, and check everything."""
        work = self._folder / "case"
        shutil.rmtree(work, ignore_errors=True)
        (work / "outside").mkdir(parents=True)
        (work / "outside" / "kept").write_text("kept")
        backup, target = work / "backup", work / "target"
        _linked(self._sound, backup)
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
            self._damage(rng, backup)
        stands = rng.random() < 0.4
        if stands:
            _linked(self._standing, target)
        else:
            target.mkdir()
        only = (
            ()
            if rng.random() < 0.5
            else tuple(rng.sample(("ledger", "raw/orders", "dagster", "orders"), rng.randint(1, 2)))
        )
        force, dry_run = rng.random() < 0.8, rng.random() < 0.15
        before, kept = _tree(target), {name: _tree(work / name) for name in ("outside", "backup")}
        try:
            found = restoring.find(backup)
            done = restoring.restore(
                found, Lake.at(target / "lake"), target / "dagster", only, force=force, dry_run=dry_run
            )
        except PlatformError as error:
            check_message(error)
            if _tree(target) != before and isinstance(error, BackupDamagedError):
                raise Wrong(f"changed: although {error}: {_differences(before, _tree(target))}") from error
        else:
            self._check(found, done, target, before, dry_run=dry_run)
        for name, tree in kept.items():
            if _tree(work / name) != tree:
                raise Wrong(f"outside: {_differences(tree, _tree(work / name))}")
        if sorted(os.listdir(work)) != ["backup", "outside", "target"] or set(os.listdir(target)) - {"lake", "dagster"}:
            raise Wrong(f"outside: {os.listdir(work)}, {os.listdir(target)}")
        if rng.random() < 0.3:
            self._used(target)

    def _check(self, found: Any, done: restoring.Restored, target: Path, before: Tree, *, dry_run: bool) -> None:
        after = _tree(target)
        if dry_run:
            if after != before:
                raise Wrong(f"changed: by a dry run: {_differences(before, after)}")
            return
        wanted = {
            ("dagster/" if file.part == "dagster" else "lake/") + file.place: file.sha256
            for file in found.manifest.of(done.parts)
        }
        for name, digest in wanted.items():
            # If a lake is restored without its ledger, the ledger loses receipts afterwards.
            if after.get(name) != digest and not name.startswith("lake/_ledger/commits/"):
                raise Wrong(f"restored: {name} is {after.get(name)}, and {digest} in the manifest")
        extra = {
            name for name in after
            if name not in wanted and any(name.startswith(_folder(part)) for part in done.parts)
        }  # fmt: skip
        if extra and not done.forgotten:
            raise Wrong(f"restored: {sorted(extra)[:5]} is not in the backup")

    def _used(self, target: Path) -> None:
        """Read the restored data: each read must return values or raise one of the platform's errors."""
        ledger = Ledger(Lake.at(target / "lake"))
        for call in (
            lambda: ledger.newest_edges(["orders"]),
            lambda: ledger.receipts(ORDERS),
            lambda: ledger.cuts("orders"),
            ledger.lake.tables,
        ):
            try:
                call()
            except PlatformError as error:
                check_message(error)

    # --- damage ------------------------------------------------------------------------------------------------

    def _damage(self, rng: random.Random, backup: Path) -> None:
        kinds: tuple[Callable[[random.Random, Path], None], ...] = (
            self._content, self._content, self._odd_file, self._odd_file, self._entries, self._entries, self._entries, self._fields,
            self._hostile, self._hostile, self._manifest_bytes, self._swapped,
        )  # fmt: skip
        # Earlier damage may have removed everything that this one would change.
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            rng.choice(kinds)(rng, backup)

    def _content(self, rng: random.Random, backup: Path) -> None:
        file = backup / rng.choice(self._files)
        content = _read(file)
        file.unlink()
        if rng.random() < 0.8:
            file.write_bytes(
                rng.choice(
                    (damaged(rng, content), content[: len(content) // 2], content + b"x", b"", content[:-1] + b"\0")
                )
            )

    def _odd_file(self, rng: random.Random, backup: Path) -> None:
        file = backup / rng.choice(self._files)
        other = backup / rng.choice(self._files)
        kept = backup.parent / "outside" / "kept"
        file.unlink()
        kind = rng.randrange(7)
        if kind == 0:
            os.mkfifo(file)
        elif kind == 1:
            file.mkdir()
        elif kind == 2:
            file.symlink_to(
                rng.choice(
                    (
                        other,
                        file,
                        kept,
                        kept.parent,
                        Path("/dev/zero"),
                        Path("/dev/stdin"),
                        Path("/nothing"),
                        Path("/proc/self/mem"),
                    )
                )
            )
        elif kind == 3:
            with file.open("wb") as opened:
                opened.truncate(1 << 40)
        elif kind == 4:
            shutil.rmtree(file.parent)
            file.parent.symlink_to(rng.choice((kept.parent, backup, other.parent)))
        elif kind == 5:
            file.write_bytes(_read(other))
        else:
            os.mknod(file, 0o600 | 0o020000, os.makedev(1, 5)) if os.geteuid() == 0 else os.mkfifo(file)

    def _swapped(self, rng: random.Random, backup: Path) -> None:
        one, other = (backup / name for name in rng.sample(self._files, 2))
        content = _read(one), _read(other)
        for file, text in zip((other, one), content, strict=True):
            file.unlink()
            file.write_bytes(text)

    def _fields_of(self, backup: Path) -> Any:
        return json.loads(_read(backup / manifest.FILE))

    def _write(self, backup: Path, fields: Any) -> None:
        (backup / manifest.FILE).unlink(missing_ok=True)
        (backup / manifest.FILE).write_text(json.dumps(fields), errors="surrogatepass")

    def _entries(self, rng: random.Random, backup: Path) -> None:
        fields = self._fields_of(backup)
        files = fields["files"]
        entry = rng.choice(files)
        kind = rng.randrange(6)
        if kind == 0:
            entry[rng.randrange(4)] = deepcopy(rng.choice(_ODD))
        elif kind == 1:
            path = rng.choice(_PATHS)
            content = rng.choice((b"", b"hostile"))
            with suppress(OSError, ValueError):
                # If possible, the file exists.
                at = (backup / path).resolve()
                if at.is_relative_to(backup) and not at.exists():
                    at.parent.mkdir(parents=True, exist_ok=True)
                    at.write_bytes(content)
            files.append([path, len(content), hashlib.sha256(content).hexdigest(), "0 0"])
        elif kind == 2:
            files.append([*entry])
        elif kind == 3:
            files.remove(entry)
        elif kind == 4:
            entry[0] = rng.choice(
                (rng.choice(_PATHS), rng.choice(files)[0], entry[0] + "/x", entry[0].rpartition("/")[0])
            )
        else:
            files.insert(rng.randrange(len(files)), rng.choice((None, [], ["x"], "abcd", {}, [1, 2, 3, 4])))
        self._write(backup, fields)

    def _fields(self, rng: random.Random, backup: Path) -> None:
        fields = self._fields_of(backup)
        name = rng.choice([*fields])
        kind = rng.randrange(4)
        if kind == 0:
            fields[name] = rng.choice(_ODD)
        elif kind == 1:
            del fields[name]
        elif kind == 2:
            table = rng.choice([*fields["tables"]])
            fields["tables"][rng.choice((table, "x", "raw/..", "", "../x"))] = rng.choice(_ODD)
        else:
            fields["tables"].pop(rng.choice([*fields["tables"]]))
        self._write(backup, fields)

    def _hostile(self, rng: random.Random, backup: Path) -> None:
        """Write other content with a matching manifest, as if an attacker had made the backup."""
        fields = self._fields_of(backup)
        entry = rng.choice([each for each in fields["files"] if rng.random() < 0.3 or each[0].endswith(".json")])
        file = backup / entry[0]
        content = _read(file)
        file.unlink()
        made = rng.choice((damaged(rng, content), self._log(rng), b"", b"{" * 100_000, b"\xff" * 50, content * 2))
        file.write_bytes(made)
        entry[1:3] = [len(made), hashlib.sha256(made).hexdigest()]
        self._write(backup, fields)

    def _log(self, rng: random.Random) -> bytes:
        """Return a commit of a Delta table that no release would write."""
        actions: tuple[Any, ...] = (
            {
                "add": {
                    "path": rng.choice(
                        ("../../../outside/kept", "/etc/passwd", "file:///etc/passwd", "x", "", "%2e%2e/x")
                    ),
                    "size": rng.choice((1, -1, 1 << 62)),
                    "partitionValues": {},
                    "modificationTime": 0,
                    "dataChange": True,
                }
            },
            {"remove": {"path": "../../../outside/kept", "dataChange": True, "deletionTimestamp": 0}},
            {
                "metaData": {
                    "id": rng.choice(("x", "'; drop", "", None, 1)),
                    "format": {"provider": "parquet"},
                    "schemaString": rng.choice(("{}", "x", '{"type":"struct","fields":[]}')),
                    "partitionColumns": [],
                    "configuration": {},
                }
            },
            {"protocol": {"minReaderVersion": rng.choice((1, 99, -1, "x")), "minWriterVersion": 2}},
            {"commitInfo": {"userMetadata": rng.choice(("x", "{}", "[" * 5_000, 1))}},
            {"txn": {"appId": "cuts/orders", "version": rng.choice((-1, 1 << 62, "x"))}},
            None,
            [],
            1,
        )
        return "\n".join(json.dumps(each) for each in rng.sample(actions, rng.randint(1, 4))).encode()

    def _manifest_bytes(self, rng: random.Random, backup: Path) -> None:
        file = backup / manifest.FILE
        content = _read(file)
        file.unlink()
        file.write_bytes(
            rng.choice(
                (
                    damaged(rng, content),
                    b"",
                    b"[" * 200_000,
                    b"null",
                    content[:-1],
                    b"\xff",
                    b"1" * 10_000,
                    b'{"platform_assets_backup": 2}',
                )
            )
        )


def _folder(part: str) -> str:
    return "dagster/" if part == "dagster" else "lake/_ledger/" if part == "ledger" else f"lake/{part}/"


def _differences(before: Tree, after: Tree) -> list[str]:
    return [
        f"{name}: {before.get(name)} is {after.get(name)}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ][:5]


@contextmanager
def _opened(folder: Path) -> Iterator[Case]:
    sync = os.sync
    os.sync = lambda: None  # not needed here, and slow for everyone on the machine
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield _Fuzzer(folder.absolute()).case
    finally:
        os.sync = sync
        shutil.rmtree(folder, ignore_errors=True)


TARGET: Final = Target(_opened, cpu_seconds=8, wall_seconds=120, megabytes=1_000)
