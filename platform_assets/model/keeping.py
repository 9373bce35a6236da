"""Retention by age: `keep: 400 days`, and the windows that are past it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

GRACE: Final = timedelta(days=7)
"""Time between the first run that sees a new or changed `keep` and the first window that it removes."""
_FORM: Final = re.compile(r"([1-9][0-9]{0,4}) (day|days|week|weeks)", re.ASCII)
_MOST_DAYS: Final = 36_500


@dataclass(frozen=True, slots=True)
class Keep:
    """Days for which windows are kept after their end."""

    days: int

    def __str__(self) -> str:
        return f"{self.days:,} day" if self.days == 1 else f"{self.days:,} days"

    def until(self, now: datetime) -> datetime:
        """Return the time before which windows must end to be past it at `now`: midnight UTC, so windows expire a day at a time."""
        midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight - timedelta(days=self.days)

    def is_past(self, end: datetime, now: datetime) -> bool:
        """Return True if a window that ended at `end` is past it at `now`."""
        return end <= self.until(now)


def keep_of(text: str) -> Keep | None:
    """Return the days of a text such as `400 days` or `2 weeks`; None for other texts, and outside of a day to a century."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        return None
    days = int(found[1]) * (7 if found[2].startswith("week") else 1)
    return Keep(days) if 1 <= days <= _MOST_DAYS else None
