"""Column types that mean the same on every database."""

import json
import math
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Dialect, Double, Text
from sqlalchemy.types import TypeDecorator


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time, kept as UTC. SQLite drops time zones, so the value goes in naive and comes out aware."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC; a naive time is a bug of the caller."""
        if value is None:
            return None
        assert value.tzinfo is not None, "times in the store are aware"
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give back an aware UTC time."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class JsonText(TypeDecorator[Any]):
    """JSON as text. NaN and infinity become null, because JSON has no word for them and PostgreSQL refuses them."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Serialise; keys keep their order."""
        return None if value is None else json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Parse."""
        return None if value is None else json.loads(value)


class RealOrNan(TypeDecorator[float]):
    """A float whose NaN is kept as null: SQLite stores it so anyhow, and on PostgreSQL NaN would sort above all."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        """NaN → null."""
        return None if value is None or math.isnan(value) else value

    def process_result_value(self, value: float | None, dialect: Dialect) -> float:
        """Null → NaN."""
        return math.nan if value is None else value


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
