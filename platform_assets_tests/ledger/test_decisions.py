"""The name on a decision: what the user claims, and what the platform can verify."""

from __future__ import annotations

import os
import pwd

import pytest

from platform_assets.errors import ConfigurationError
from platform_assets.ledger.decisions import Author

UID = os.getuid()


def test_a_name_that_was_given_is_marked_as_claimed() -> None:
    assert Author.of("ann", "why").name == f"ann [claimed; uid {UID}]"
    assert Author.of("ann", "why", "a-run").name == "ann [claimed; Dagster run a-run]"


def test_without_a_name_it_is_the_account_by_the_system_or_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(variable, "somebody-else")
    assert Author.of(None, "why").name == f"{pwd.getpwuid(UID).pw_name} [uid {UID}]"
    assert Author.of(" ", "why", "a-run").name == "Dagster run a-run"


def test_a_claim_cannot_look_like_what_is_known() -> None:
    assert Author.of("root [uid 0]", "why").name == f"root (uid 0) [claimed; uid {UID}]"
    assert Author.of("ann\n[uid 0]" + "x" * 10_000, "why").name.startswith("ann (uid 0)xxx")
    assert len(Author.of("x" * 10_000, "why").name) < 300


def test_a_decision_needs_a_reason() -> None:
    with pytest.raises(ConfigurationError, match="--reason"):
        Author.of("ann", " ")
