"""Range headers (RFC 9110, section 14): which bytes of a file were asked for."""

import re

from api.errors import RangeError

_RANGE = re.compile(r"bytes=\s*(\d*)-(\d*)\s*", re.ASCII)


def parse_range(header: str | None, *, size: int) -> tuple[int, int] | None:
    """The bytes ``[begin, end)`` that ``header`` asks for, of a file of ``size`` bytes; None for all of it.

    Several ranges at once are answered with the whole, which the RFC allows. Raises ``RangeError``.
    """
    if header is None or "," in header:
        return None
    asked = _RANGE.fullmatch(header)
    first, last = asked.groups() if asked else ("", "")
    if first:
        begin, end = int(first), min(size, int(last) + 1 if last else size)
    elif last:
        begin, end = max(0, size - int(last)), size
    else:
        begin = end = 0
    if begin >= end:
        raise RangeError(
            f"the file has {size} bytes, asked {header!r}; ask as `Range: bytes=FIRST-LAST`, or leave the header out",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return begin, end
