"""Install the pinned jars, and write the lock that pins them.

`python -m platform_assets.services.jars [install|lock]`. A second installation verifies the existing jars and does not
use the network.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from platform_assets.services.errors import PlatformError
from platform_assets.services.home import Home
from platform_assets.services.ivy import Ivy, pyspark_jars, work_folder
from platform_assets.services.jarlock import (
    INSTALLED_SETS,
    JAR_SETS,
    LOCK_FILE,
    Jar,
    JarSet,
    read_lock,
    sha256_of,
    verify,
    write_lock,
)
from platform_assets.services.java import find_java
from platform_assets.services.printable import printable

Reporter = Callable[[str], None]

SHARES_PER_SET: Final = 2
"""Number of Ivy processes for each set. One Ivy fetches one jar after another and mostly waits."""


REPLACING: Final = frozenset({"lz4-java"})
"""Names of jars in the Spark set that must come before pyspark's jars with the same names on a class path, because
pyspark's jars have known vulnerabilities."""


def replacements(home: Home) -> tuple[Path, ...]:
    """Return the paths of those jars that must come before pyspark's own jars on a class path."""
    return class_path(home, "spark", [jar for jar in read_lock() if jar.name in REPLACING])


def class_path(home: Home, jar_set: JarSet, jars: Sequence[Jar] | None = None) -> tuple[Path, ...]:
    """Return the paths of the jars in one set, in the order of the lock. The result never includes other jars in the
    folder."""
    listed = read_lock() if jars is None else jars
    return tuple(home.jars / jar_set / jar.file_name for jar in listed if jar.jar_set == jar_set)


def install(
    home: Home,
    sets: Sequence[JarSet] = INSTALLED_SETS,
    *,
    report: Reporter = print,
    environ: Mapping[str, str] | None = None,
    lock_file: Path = LOCK_FILE,
) -> None:
    """Fetch every missing locked jar of these sets, and verify all jars.

    Args:
        home: the home whose `jars` folder is filled.
        sets: the sets to install.
        report: called with a line of text for each step.
        environ: the environment to read; the process's own by default.
        lock_file: the lock file to use.

    Raises:
        JarMismatchError: a jar differs from the lock. A jar that was just fetched is not kept.
        JavaNotFoundError: jars are missing, and there is no Java with which to fetch them.
        JarsUnavailableError: Ivy could not fetch the jars. The error contains the path of Ivy's log file.
        ConfigurationError: the lock file or pyspark is missing.
    """
    env = os.environ if environ is None else environ
    jars = [jar for jar in read_lock(lock_file) if jar.jar_set in sets]
    with _exclusive(home.jars):
        missing: list[Jar] = []
        for jar in jars:
            path = home.jars / jar.jar_set / jar.file_name
            if path.exists():
                verify(jar, path)
            else:
                missing.append(jar)
        if not missing:
            report(f"jars: {len(jars)} present and verified")
            return
        _fetch(home, missing, len(jars) - len(missing), report, env)
    report(f"jars: {len(jars)} verified")


def _fetch(home: Home, missing: Sequence[Jar], present: int, report: Reporter, env: Mapping[str, str]) -> None:
    java = find_java(env)
    report(f"jars: fetching {len(missing)} ({present} already present)")
    done = _Counter(len(missing), report)
    shares = _shares(missing)

    def fetch_share(number: int) -> None:
        log = home.jars / f"ivy-{number}.log"
        with work_folder(home.jars) as folder:
            out = Ivy(java, Path(folder), log).fetch(shares[number], done.increment, env)
            for jar in shares[number]:
                place(jar, out, home.jars)
        log.unlink()

    with ThreadPoolExecutor(len(shares)) as pool:
        for _ in pool.map(fetch_share, range(len(shares))):
            pass


def place(jar: Jar, fetched: Path, jars_folder: Path) -> None:
    """Verify a fetched jar, and then move it to its final path atomically. A reader never sees an incomplete jar.

    Raises:
        JarMismatchError: the jar differs from the lock. Nothing is moved.
    """
    source = fetched / jar.organisation / jar.name / f"{jar.version}.jar"
    verify(jar, source, jar.file_name)
    target = jars_folder / jar.jar_set / jar.file_name
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(source, target)


def lock(*, report: Reporter = print, environ: Mapping[str, str] | None = None, lock_file: Path = LOCK_FILE) -> None:
    """Resolve `ivy.xml` again and write the lock file. The Spark set omits jars that pyspark already includes, except
    for those in `REPLACING`.

    Raises:
        JavaNotFoundError, JarsUnavailableError, ConfigurationError: as in `install`.
    """
    env = os.environ if environ is None else environ
    home = Home.from_environment(env)
    java = find_java(env)
    provided = {_module_name(path) for path in pyspark_jars().glob("*.jar")}
    jars: list[Jar] = []
    for jar_set in JAR_SETS:
        report(f"lock: resolving set {jar_set}")
        with work_folder(home.jars) as folder:
            out = Ivy(java, Path(folder), home.jars / "ivy-lock.log").resolve(jar_set, lambda: None, env)
            for path in sorted(out.glob("*/*/*.jar")):
                organisation, name = path.parts[-3:-1]
                if jar_set in ("broker", "s3proxy", "connect") or name not in provided - REPLACING:
                    jars.append(Jar(jar_set, organisation, name, path.stem, sha256_of(path)))
    write_lock(jars, lock_file)
    report(f"lock: {len(jars)} jars written to {lock_file}")


class _Counter:
    """Counts the downloads of several threads, and reports each download."""

    def __init__(self, total: int, report: Reporter) -> None:
        self._total, self._report, self._done, self._mutex = total, report, 0, threading.Lock()

    def increment(self) -> None:
        with self._mutex:
            self._done += 1
            if self._done % 5 == 0 or self._done == self._total:
                self._report(f"jars: {self._done} of {self._total} fetched")


def _shares(jars: Sequence[Jar]) -> list[list[Jar]]:
    """Divide a list of jars among a few runs of Ivy. Each run fetches jars of only one set, because Ivy keeps only one
    version of a module in each run."""
    by_set = [[jar for jar in jars if jar.jar_set == jar_set] for jar_set in JAR_SETS]
    split = [listed[start::SHARES_PER_SET] for listed in by_set for start in range(SHARES_PER_SET)]
    return [share for share in split if share]


def _module_name(jar: Path) -> str:
    return re.sub(r"-\d+\.\d.*", "", jar.stem)


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. Without it, two concurrent installations would fetch the same jars."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m platform_assets.services.jars", description=__doc__)
    parser.add_argument("command", nargs="?", choices=("install", "lock"), default="install")
    parser.add_argument("--set", choices=JAR_SETS, action="append", help="install only this set; may be repeated")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "lock":
            lock()
        else:
            install(Home.from_environment(), chosen.set or INSTALLED_SETS)
    except PlatformError as error:
        print(printable(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
