"""Job ids that sort by the time of their making."""

import secrets
import time

_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"  # no i, l, o, u: readable aloud
_TIME_BITS, _RANDOM_BITS = 48, 80


def new_job_id() -> str:
    """``job-`` and 26 base-32 digits: 48 bits of milliseconds, then 80 random bits, as in a ULID."""
    number = (time.time_ns() // 1_000_000) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    digits = (_TIME_BITS + _RANDOM_BITS + 4) // 5
    return "job-" + "".join(_CROCKFORD[(number >> (5 * place)) & 31] for place in reversed(range(digits)))
