"""The driver's process: ``python -m service.driver_main JOB_ID VERSION``, started by Ray on a node of the cluster.

Settings come from the node's environment, as for every process of ours there; what Ray sets for its own job drivers is
read here and handed on. Exit code 0: the job ended as it should (FINISHED, CANCELLED); 1: it failed, or nothing is
known about its end. A driver of another VERSION than the service's ends its job at once.
"""

import logging
import os
import platform
import sys
from pathlib import Path

from service.driver_watch import StopOrder
from service.job_log import LOG_NAME, LogCopier
from service.log_tee import LogTee
from service.settings import Settings, load_settings
from service.spec import JobState
from service.states import IllegalMoveError
from service.store.engine import open_store
from service.store.job_store import JobStore
from service.store.records import Reason
from workers.errors import VersionMismatchError
from workers.training.folder import Folder
from workers.versions import check_version

_log = logging.getLogger("service.driver_main")
_GOOD_ENDS = frozenset({JobState.FINISHED, JobState.CANCELLED})


def main(arguments: list[str]) -> int:
    """Drive one job; the exit code of the process."""
    if len(arguments) != 2:
        raise SystemExit("usage: python -m service.driver_main JOB_ID VERSION_OF_THE_SERVICE")
    job_id, services_version = arguments
    settings = load_settings()
    log = JobLog(job_id, settings=settings)
    log.start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return _run(job_id, services_version=services_version, settings=settings, log=log)
    finally:
        log.stop()


class JobLog:
    """What this process prints, in the job's log: a file of the storage, or one of ours whose copy goes there."""

    def __init__(self, job_id: str, *, settings: Settings) -> None:
        folder = Folder(settings.job_uri(job_id)) / "logs"
        if folder.is_local:
            self._file, self._copier = Path(folder.uri) / LOG_NAME, None
        else:
            self._file = settings.cache / "logs" / f"{job_id}-{os.getpid()}.log"
            self._copier = LogCopier(self._file, folder)
        self._tee = LogTee(self._file)

    def start(self) -> None:
        """Begin to write."""
        self._tee.start()
        if self._copier is not None:
            self._copier.start()

    def stop(self, *, timeout_s: float = 2.0) -> None:
        """Write what is left; see ``LogTee.stop``."""
        self._tee.stop(timeout_s=timeout_s)
        if self._copier is not None:
            self._copier.stop()
            self._file.unlink(missing_ok=True)


def _run(job_id: str, *, services_version: str, settings: Settings, log: JobLog) -> int:
    store = open_store(settings.database_url)
    store.observe(job_id)  # the first sign of life, before the slow imports
    try:
        check_version(services_version, node=platform.node(), whose="the service")
    except VersionMismatchError as error:
        _end_in_store(
            store, job_id, StopOrder(target=JobState.FAILED, reason=Reason(code=error.code, text=error.message))
        )
        return 1
    from service.driver import drive
    from service.ray_engine import RayEngine

    def force_end(order: StopOrder) -> None:
        _end_in_store(store, job_id, order)
        log.stop(timeout_s=0.5)
        os._exit(0 if order.target in _GOOD_ENDS else 1)  # the main thread is stuck: nobody else can leave

    engine = RayEngine(gcs_address=os.environ.get("RAY_ADDRESS"))
    state = drive(job_id, store=store, settings=settings, engine=engine, force_end=force_end)
    _log.info("job %s is %s", job_id, state)
    return 0 if state in _GOOD_ENDS else 1


def _end_in_store(store: JobStore, job_id: str, order: StopOrder) -> None:
    try:
        if order.target is not None:
            store.move(job_id, order.target, reason=order.reason)
    except IllegalMoveError as error:
        _log.info("job %s has ended already: %s", job_id, error)
    except Exception:
        _log.exception("job %s could not be ended as %s", job_id, order.target)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # Everything is written and closed; tearing the interpreter down would take another second.
    os._exit(code)
