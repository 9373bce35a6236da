"""Errors for bytes that are not an intact record batch."""


class Damage(Exception):
    """Bytes that are no intact batch; `offset` is where the batch claims to begin."""

    def __init__(self, offset: int, reason: str) -> None:
        self.offset, self.reason = offset, reason
        super().__init__(f"offset {offset}: {reason}")


class TooLarge(Damage):
    """A batch that is beyond one of the limits, which `variable` sets; it has not been opened."""

    def __init__(self, offset: int, reason: str, variable: str) -> None:
        self.variable = variable
        super().__init__(offset, reason)
