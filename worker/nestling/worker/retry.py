"""When a failed model call is tried again in the same step, and after how long."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from nestling.session.jsontext import Json, JsonObject, is_int0

RETRIED: Final = frozenset({"RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT"})
"""The codes of failures that may be gone the next time."""

_MOST_MS: Final = 2**31
"""A provider that asks for more than 24 days asks for nothing sensible."""


@dataclass(frozen=True)
class RetryPolicy:
    """Which failures are tried again, how often, and after how long.

    The n-th retry waits ``base_ms * factor ** (n - 1)`` milliseconds, ``max_ms`` at
    most, and of that up to the part ``jitter`` less; never less than the provider asked
    for. The jitter is a pure function of session, step and retry, so that a replay
    logs what was recorded.

    Attributes:
        max_retries: how often one step's call is tried again.
        codes: the failure codes (``ProviderError.code``) that are tried again.
        base_ms: the first wait, in milliseconds.
        factor: how much longer each wait is than the one before it.
        max_ms: the longest wait, in milliseconds.
        jitter: which part of a wait, from 0 to 1, is left to chance.
    """

    max_retries: int = 2
    codes: frozenset[str] = RETRIED
    base_ms: int = 500
    factor: float = 2.0
    max_ms: int = 30_000
    jitter: float = 0.25

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: naming the one that makes no sense.
        """
        for name in ("max_retries", "base_ms", "max_ms"):
            if not is_int0(getattr(self, name)):
                found = getattr(self, name)
                raise ValueError(f"{name} must be an integer >= 0, found {found!r}")
        if not self.factor >= 1:
            raise ValueError(f"factor must be at least 1, found {self.factor!r}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be from 0 to 1, found {self.jitter!r}")

    def allows(self, failure: JsonObject, retry: int) -> bool:
        """Tell whether a failure is tried again, for the `retry`-th time from 1."""
        return retry <= self.max_retries and failure.get("code") in self.codes

    def delay_ms(self, failure: JsonObject, retry: int, salt: str) -> int:
        """Return the wait before a retry, in milliseconds.

        Args:
            failure: the failure, which may say how long the provider wants to be left
                alone (``providerRetryAfterMs``).
            retry: which one, from 1.
            salt: what the jitter is made from.
        """
        # The exponent is bounded before the float is made: it must not overflow.
        wait = min(float(self.max_ms), self.base_ms * self.factor ** min(retry - 1, 64))
        digest = hashlib.sha256(f"{salt} {retry}".encode("utf-8", "backslashreplace"))
        chance = int.from_bytes(digest.digest()[:4], "big") / 2**32
        own = int(wait * (1 - self.jitter * chance))
        asked: Json = failure.get("providerRetryAfterMs")
        is_sensible = is_int0(asked) and asked < _MOST_MS
        return max(own, asked) if is_sensible else own

    @property
    def key(self) -> str:
        """The policy in one line, for the log."""
        codes = ",".join(sorted(self.codes))
        numbers = f"{self.base_ms}*{self.factor:g}<={self.max_ms}~{self.jitter:g}"
        return f"normal {self.max_retries} [{codes}] {numbers}"


NO_RETRY: Final = RetryPolicy(max_retries=0)
"""Every failure ends the turn."""
