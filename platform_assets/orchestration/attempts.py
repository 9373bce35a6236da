"""Loading windows in order, where one that fails does not hold up the others; and what a failed run says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from platform_assets.errors import BrokerUnreachableError, PlatformError, SparkUnreachableError, UnknownOutcome
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
