"""Loading windows in order, where one that fails does not hold up the others; and what a failed run says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from platform_assets.errors import BrokerUnreachableError, PlatformError, SparkUnreachableError, UnknownOutcome
from platform_assets.ledger import decisions, unloaded
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import edge_of
from platform_assets.orchestration.retries import decided_at
from platform_assets.windows.catching_up import load_many
from platform_assets.windows.loading import Loader
from platform_assets.windows.replacing import Loaded


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of one window: either `loaded` or `error` is there."""

    window: str
    loaded: Loaded | None
    error: PlatformError | None


def load_each(loader: Loader, keys: Iterable[str], forget_session: Callable[[], None]) -> Iterator[Attempt]:
    """Load each window of `keys`, in this order.

    `forget_session` is called where the connection to Spark broke, so that the next window gets a new one.
    """
    for key, outcome in load_many(loader, list(dict.fromkeys(keys))):
        if isinstance(outcome, PlatformError):
            if isinstance(outcome, UnknownOutcome):
                forget_session()
            yield Attempt(key, None, outcome)
        else:
            yield Attempt(key, outcome, None)


def decided_on(ledger: Ledger, windows: Mapping[TableRef, Collection[str]]) -> dict[TableRef, dict[str, datetime]]:
    """What has been decided on these windows, to be noted before a run reads anything of them: see `retries.Waiting`."""
    parking = decisions.parking_of_many(ledger.lake, windows)
    found = dict[TableRef, dict[str, datetime]]()
    for table, named in windows.items():
        keys = list(_keys(named))
        accepted = unloaded.accepted(ledger, table, keys) if keys else {}
        unparked = {key: at for key, at in parking[table].unparked.items() if key in named}
        found[table] = decided_at(accepted, unparked)
    return found


def _keys(named: Iterable[str]) -> Iterator[str]:
    """Those that are keys of windows; the others fail when it is their turn."""
    for key in named:
        with suppress(ValueError):
            edge_of(key)
            yield key


def is_of_a_service(error: PlatformError) -> bool:
    """Whether Spark or the brokers are gone, so that the next window would fail the same way."""
    return isinstance(error, SparkUnreachableError | BrokerUnreachableError | UnknownOutcome)


def failure_text(errors: Mapping[str, PlatformError], windows: int, loaded: int) -> str:
    """What a run of `windows` windows says in which those in `errors` failed and `loaded` were loaded."""
    if windows == 1:
        return str(next(iter(errors.values())))
    text = f"{len(errors)} of {windows} windows failed, {loaded} are loaded"
    not_tried = windows - len(errors) - loaded
    text += f", {not_tried} were not tried since a service is gone. " if not_tried else ". "
    # Many windows fail of one cause, and each error names its window itself.
    return text + " ".join(f"Window {key}: {error}" for key, error in errors.items())
