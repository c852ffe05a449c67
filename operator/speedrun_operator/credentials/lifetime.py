"""How long a credential lasts, read from the credential itself: a JWT's `exp` (RFC 7519) or a certificate's `notAfter`.

Nothing is verified here: whoever gets the credential does that. What is no JWT and no certificate has no known end.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509

MARGIN = timedelta(minutes=5)
"""So long before its end a credential is renewed; for short-lived ones a fifth of what was left when it was read."""


def claims(token: str) -> Mapping[str, Any]:
    """The payload of a JWT; empty for any other text."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        payload = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return {}
    return payload if isinstance(payload, dict) else {}


def token_end(token: str) -> datetime | None:
    """When a JWT expires (aware, UTC); None where it does not say."""
    end = claims(token).get("exp")
    try:
        return datetime.fromtimestamp(float(end), UTC) if isinstance(end, int | float) else None
    except (OverflowError, OSError, ValueError):
        return None


def certificate_end(pem: str) -> datetime | None:
    """When the first certificate of a PEM text expires (aware, UTC); None where it cannot be read."""
    try:
        return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc
    except ValueError:
        return None


def moment(text: str) -> datetime | None:
    """An RFC 3339 time (aware, UTC; without a zone it is taken as UTC); None for any other text."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)


def earliest(*moments: datetime | None) -> datetime | None:
    known = [each for each in moments if each is not None]
    return min(known, default=None)


def fresh_until(end: datetime | None, now: datetime, margin: timedelta = MARGIN) -> datetime | None:
    """Until when a credential that was read `now` and expires at `end` needs no renewal."""
    return None if end is None else end - min(margin, max(timedelta(0), end - now) / 5)
