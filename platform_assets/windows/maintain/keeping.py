"""Retention by age, as a step of upkeep: remove expired windows, and record the result for `status`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from platform_assets.errors import PlatformError
from platform_assets.ledger import decisions
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.logs import logger
from platform_assets.windows.maintain import last_expiry, notice
from platform_assets.windows.maintain.expiring import Expiring
from platform_assets.windows.maintain.last_expiry import LastExpiry

_log = logger(__name__)


def of_topics(
    declarations: Iterable[TopicDeclaration], ledger: Ledger, now: datetime, *, dry_run: bool = False
) -> Iterator[tuple[TopicDeclaration, LastExpiry | Exception]]:
    """Do the same as `of_topic` for several topics; yield the results of those that have a `keep`.

    An error of one topic is yielded, and stops neither the other topics nor what else upkeep does.
    """
    declared = list(declarations)
    without = [each for each in declared if each.keep is None and not dry_run]
    had = _with_notice(ledger) if without else frozenset[str]()
    if isinstance(had, PlatformError):
        # Once: the error is the same for all of them.
        yield without[0], had
        had = frozenset[str]()
    for each in declared:
        if each.keep is None and each.topic not in had:
            continue
        try:
            done = of_topic(each, ledger, now, dry_run=dry_run)
        except Exception as e:  # noqa: BLE001  whatever it is, the caller reports it and upkeep fails
            if not isinstance(e, PlatformError):
                _log.error("upkeep of topic %s failed: %r", each.topic, e)
            yield each, e
        else:
            if done is not None:
                yield each, done


def _with_notice(ledger: Ledger) -> frozenset[str] | PlatformError:
    try:
        return frozenset(each.topic for each in decisions.decisions(ledger.lake, None, ("keep",)))
    except PlatformError as e:
        return e


def topics_with_removals(ledger: Ledger) -> frozenset[str]:
    """Return the topics of which windows may have been removed because they were past `keep`."""
    return frozenset(each.topic for each in decisions.decisions(ledger.lake, None, ("expire",)))


def of_topic(
    declaration: TopicDeclaration, ledger: Ledger, now: datetime, *, dry_run: bool = False
) -> LastExpiry | None:
    """Remove the topic's windows that are past its `keep`, or return what would be removed; None without a `keep`.

    A dry run writes nothing. Raises what `Expiring.run` raises.
    """
    known = last_expiry.recall(ledger, declaration.topic)
    seen = None if known is None else datetime.fromisoformat(known.at)
    if dry_run:
        plan = Expiring(declaration, ledger, seen, notice.times_of_process, is_dry_run=True).plan(now)
        return None if plan is None else last_expiry.of_plan(plan, now)
    done = Expiring(declaration, ledger, seen).run(now)
    if done is None:
        return None
    found = last_expiry.of_run(done, now)
    last_expiry.remember(ledger, declaration.topic, found)
    return found
