"""Doing what must not be lost: again and again while the database does not answer."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from service.store.errors import StoreUnavailableError

INSIST_S = 60.0  # a database that restarts is back sooner; a result that took hours is worth the wait
_PAUSE_S = 1.0
AWAY = (SQLAlchemyError, StoreUnavailableError)  # what a database that does not answer looks like

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def insist(action: Callable[[], _T]) -> _T:
    """The answer of ``action``, which is tried again for ``INSIST_S``; then its last error is raised."""
    deadline = time.monotonic() + INSIST_S
    while True:
        try:
            return action()
        except AWAY:
            if time.monotonic() > deadline:
                raise
            _log.exception("the database did not answer; trying again")
            time.sleep(_PAUSE_S)
