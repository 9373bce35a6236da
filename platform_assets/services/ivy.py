"""Run Ivy from the jar that is included in pyspark."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import quoteattr

from platform_assets.services.errors import ConfigurationError, JarsUnavailableError
from platform_assets.services.jarlock import Jar, JarSet
from platform_assets.services.java import Java
from platform_assets.services.truststore import trust_options

WANTED_FILE: Final = Path(__file__).with_name("ivy.xml")
SETTINGS_FILE: Final = Path(__file__).with_name("ivysettings.xml")
SETTINGS_VARIABLE: Final = "PLATFORM_IVY_SETTINGS"
"""Variable with the path of a custom Ivy settings file, for example for a mirror."""

_FILE_PATTERN: Final = "[organisation]/[artifact]/[revision].[ext]"
# Folders separate the name from the version, which a jar's file name does not (spark-sql-kafka-0-10_2.13-4.0.0).


@dataclass(frozen=True, slots=True)
class Ivy:
    """Ivy, run with a given Java.

    Attributes:
        java: the Java that runs Ivy.
        folder: the folder for Ivy's cache and for the files that it fetches. The folder may be deleted afterwards.
        log: the file for Ivy's output. Errors point to this file, so it must be kept.
    """

    java: Java
    folder: Path
    log: Path

    def fetch(self, jars: Sequence[Jar], on_jar: Callable[[], None], environ: Mapping[str, str]) -> Path:
        """Fetch exactly these jars and return the folder that contains them as `organisation/name/version.jar`.

        Args:
            jars: the jars to fetch, without their dependencies.
            on_jar: called after each download.
            environ: the environment from which `PLATFORM_IVY_SETTINGS` is read.

        Raises:
            JarsUnavailableError: Ivy failed. The error contains the path of Ivy's log file.
        """
        module = self.folder / "ivy.xml"
        module.write_text(_module_of(jars), encoding="utf-8")
        settings = environ.get(SETTINGS_VARIABLE) or str(SETTINGS_FILE)
        return self._run(module, ("default",), ("-settings", settings), on_jar)

    def fetch_archive(self, archive: Jar, classifier: str, ending: str, environ: Mapping[str, str]) -> Path:
        """Fetch one file that was published with a module, and return its path. The file is identified by its
        classifier and extension. Everything else is as in `fetch`."""
        module = self.folder / "ivy.xml"
        module.write_text(
            _module_of(
                [archive],
                f"<artifact name={quoteattr(archive.name)} type={quoteattr(ending)} "
                f"ext={quoteattr(ending)} m:classifier={quoteattr(classifier)}/>",
            ),
            encoding="utf-8",
        )
        settings = environ.get(SETTINGS_VARIABLE) or str(SETTINGS_FILE)
        out = self._run(module, ("default",), ("-settings", settings), lambda: None, (ending,))
        return out / archive.organisation / archive.name / f"{archive.version}.{ending}"

    def resolve(self, jar_set: JarSet, on_jar: Callable[[], None], environ: Mapping[str, str]) -> Path:
        """Resolve one set in `ivy.xml` with all its dependencies. Everything else is as in `fetch`."""
        own = environ.get(SETTINGS_VARIABLE)
        return self._run(WANTED_FILE, (jar_set,), ("-settings", own) if own else (), on_jar)

    def _run(
        self,
        module: Path,
        confs: Sequence[str],
        settings: Sequence[str],
        on_jar: Callable[[], None],
        types: Sequence[str] = ("jar", "bundle", "maven-plugin"),
    ) -> Path:
        out = self.folder / "out"
        trust = trust_options(self.folder) if self.java.bundled else ()
        command = [
            str(self.java.executable), *trust, "-cp", str(ivy_jar()), "org.apache.ivy.Main",
            *settings, "-ivy", str(module), "-confs", *confs, "-cache", str(self.folder / "cache"),
            "-types", *types, "-retrieve", str(out / _FILE_PATTERN),
        ]  # fmt: skip
        with (
            self.log.open("w", encoding="utf-8") as sink,
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                encoding="utf-8", errors="replace", cwd=self.folder,
            ) as process,
        ):  # fmt: skip
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    sink.write(line)
                    if "[SUCCESSFUL ]" in line:
                        on_jar()
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            raise JarsUnavailableError(_reason(self.log), str(self.log), SETTINGS_VARIABLE)
        return out


def ivy_jar() -> Path:
    """Return the Ivy jar inside pyspark.

    Raises:
        ConfigurationError: pyspark is not installed, or does not contain Ivy.
    """
    found = sorted(pyspark_jars().glob("ivy-*.jar"))
    if not found:
        raise ConfigurationError(
            f"pyspark's jars in {pyspark_jars()} do not include Ivy: install pyspark from its wheel."
        )
    return found[-1]


def pyspark_jars() -> Path:
    """Return the folder of pyspark's own jars, without importing pyspark.

    Raises:
        ConfigurationError: pyspark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigurationError("pyspark is not installed: install the project's requirements first.")
    return Path(spec.origin).parent / "jars"


def work_folder(parent: Path) -> tempfile.TemporaryDirectory[str]:
    """Yield a folder for one run of Ivy, on the same disk as the jars."""
    parent.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix=".ivy-", dir=parent, ignore_cleanup_errors=True)


def _module_of(jars: Sequence[Jar], artifact: str = "") -> str:
    lines = (
        f"<dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.name)} rev={quoteattr(jar.version)}"
        f' transitive="false" conf="default-&gt;default">{artifact}</dependency>'
        for jar in jars
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven"><info organisation="local" module="platform-jars"/>'
        '<configurations><conf name="default"/></configurations><dependencies>'
        + "\n".join(lines)
        + "</dependencies></ivy-module>\n"
    )


def _reason(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    missing = [match.group(1) for line in lines if (match := re.search(r":: (\S+#\S+): not found", line))]
    if missing:
        return f"not found in the repository: {', '.join(dict.fromkeys(missing))}"
    refused = [line.strip() for line in lines if re.search(r"timed out|refused|Unknown ?Host|unreachable", line)]
    if refused:
        return f"the package repository could not be reached ({refused[0]})"
    return "Ivy failed. The last lines of its log:\n" + "\n".join(lines[-10:]) + "\n"
