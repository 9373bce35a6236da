"""Answers of object stores, recognized in the texts of errors, because the libraries give no codes."""

from __future__ import annotations

import re
from typing import Final

_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_STATUS: Final = re.compile(r"status code.{0,60}?\b(\d{3} [A-Z]\w+(?: [A-Z]\w+)*)", re.DOTALL)
_SILENT: Final = re.compile(r"Error performing \w+ http\S+ in .*(HTTP error|error sending request)", re.DOTALL)
_NO_BUCKET: Final = re.compile(r"\bNoSuchBucket\b")
_DENIED: Final = re.compile(r"lacked the necessary privileges|valid authentication credentials|\b40[13] \w")


def answer_of(text: str) -> str | None:
    """Summarize the answer of an object store, or the lack of an answer, from the text of an error; None if the text
    does not come from a store."""
    status, code = _STATUS.search(text), _CODE.search(text)
    if status or code:
        return "the store answers " + ", ".join(m[1] for m in (status, code) if m)
    return "the store does not answer" if _SILENT.search(text) else None


def has_no_bucket(text: str) -> bool:
    """Return True if the text of an error is an object store's report that the bucket does not exist."""
    return _NO_BUCKET.search(text) is not None


def is_denied(text: str) -> bool:
    """Return True if the text of an error is an object store's refusal of the credentials."""
    return _DENIED.search(text) is not None
