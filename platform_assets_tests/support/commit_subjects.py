"""Check commit subjects: `area: imperative`, at most 72 characters.

`python -m platform_assets_tests.support.commit_subjects FILE` checks the message in FILE, as a commit-msg hook. Without
an argument, it checks all commits that are not on `origin/main` yet, and `make lint` fails if any subject is wrong.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from platform_assets.services.home import CHECKOUT

LONGEST: Final = 72
_FORM: Final = re.compile(r"[\w./-]+(?:, [\w./-]+)*: (\S+)(?: .*)?")
_NOT_IMPERATIVE: Final = re.compile(
    r"(?!(?:bring|string|ping|ring|need|feed|embed|seed|speed|exceed|shed)$)\w+(?:ing|ed)"
)
_THIRD_PERSON: Final = re.compile(r"(?!(?:focus|bias)$)\w*[^s]s")
_MADE_BY_GIT: Final = ("Merge ", "Revert ", "fixup! ", "squash! ")


def fault(message: str) -> str | None:
    """Return the fault in the subject of a commit message, or None if the subject is correct."""
    lines = [line for line in message.splitlines() if not line.startswith("#")] or [""]
    subject = lines[0]
    if subject.startswith(_MADE_BY_GIT):
        return None
    form = _FORM.fullmatch(subject)
    if form is None:
        return "write it as `area: imperative`, such as `kafka: ask a busy token endpoint again`"
    if len(subject) > LONGEST:
        return f"{len(subject)} characters: use at most {LONGEST}, and say why in the body"
    if subject.endswith("."):
        return "remove the period at its end"
    if _NOT_IMPERATIVE.fullmatch(form[1]) or _THIRD_PERSON.fullmatch(form[1]):
        return f"begin with an imperative, such as `add` or `refuse`, not `{form[1]}`"
    if len(lines) > 1 and lines[1].strip():
        return "leave the second line empty"
    return None


def new_subjects(checkout: Path) -> list[str]:
    """Return the subjects of commits that are not on `origin/main` yet; published commits can no longer be changed.

    Without a remote, return the subjects of commits after the newest change of the hook's line. Outside of a Git
    checkout, return an empty list.
    """
    base = _git(checkout, "rev-parse", "--verify", "--quiet", "refs/remotes/origin/main")
    base = base or _git(checkout, "log", "--format=%H", "-Gcommit_subjects", "--", ".pre-commit-config.yaml")
    return _git(checkout, "log", "--no-merges", "--format=%s", f"{base[0]}..HEAD") if base else []


def _git(checkout: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def main(arguments: Sequence[str]) -> int:
    """Print the faults, and return the exit code."""
    messages = [Path(path).read_text("utf-8") for path in arguments] or new_subjects(CHECKOUT)
    found = [(message.partition("\n")[0], why) for message in messages if (why := fault(message)) is not None]
    for subject, why in found:
        print(f"commit subject {subject!r}: {why}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
