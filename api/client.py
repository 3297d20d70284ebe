"""The Python client: everything that the REST API does, over httpx, with no part of the server.

    client = GraphmillClient()                     # finds the server of this machine and its key by itself
    job = client.submit({"name": "photo", "kind": "mqgnn", ...})
    for event in client.follow(job.id): ...
    client.download(job.id, "photo")

Answers are the values of ``api.schemas``. A service that restarts is waited for; what it refuses raises
``RequestRefusedError`` with its problem document; silence raises ``ServiceUnreachableError``.
"""

import json
import logging
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from api.client_errors import DownloadRefusedError, RequestRefusedError, WaitTimeoutError
from api.connection import find_connection
from api.following import FollowedEvent, follow_events, read_log
from api.schemas.jobs import JobDetail, JobPageView, JobView
from api.schemas.parts import ArtifactListView, ArtifactView, MetricsView, PlanView, SeriesView
from api.schemas.system import ClusterStateView, DatasetListView, DatasetView
from api.transport import Transport
from service.settings import Settings, load_settings
from service.spec import JobSpec, JobState

_log = logging.getLogger(__name__)

_PATIENCE_S = 60.0  # as long as a service may take to come back


class GraphmillClient:
    """A connection to a Graphmill service; close it, or use it in a ``with`` block."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        settings: Settings | None = None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        connection = find_connection(settings or load_settings(), url=url, api_key=api_key)
        self._transport = Transport(connection, patience_s=patience_s)

    @property
    def url(self) -> str:
        """Where the service is."""
        return self._transport.url

    def close(self) -> None:
        """Drop the connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        self.close()

    # ---- jobs

    def submit(self, spec: JobSpec | object, *, idempotency_key: str | None = None) -> JobView:
        """Submit a job, given as a spec or as its document; the service says what is wrong with it.

        A lost answer is asked for again under the same key, so one call makes one job.
        """
        document = spec.model_dump(mode="json") if isinstance(spec, JobSpec) else spec
        headers = {"Content-Type": "application/json", "Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        # NaN goes over the wire, so that the service can answer with its pointer among all other faults.
        response = self._transport.request("POST", "/v1/jobs", content=json.dumps(document), headers=headers)
        return JobView.model_validate_json(response.content)

    def job(self, job_id: str) -> JobDetail:
        """One job with its history."""
        return JobDetail.model_validate_json(self._get(f"/v1/jobs/{quote(job_id, safe='')}").content)

    def jobs(self, *, state: JobState | None = None, page_size: int = 50) -> Iterator[JobView]:
        """All jobs, newest first, page by page as they are needed."""
        params: dict[str, Any] = {"limit": page_size, **({"state": str(state)} if state else {})}
        while True:
            page = JobPageView.model_validate_json(self._get("/v1/jobs", params=params).content)
            yield from page.items
            if page.next_cursor is None:
                return
            params["cursor"] = page.next_cursor

    def cancel(self, job_id: str) -> JobView:
        """Ask for the end of a job."""
        response = self._transport.request("POST", f"/v1/jobs/{quote(job_id, safe='')}/cancel")
        return JobView.model_validate_json(response.content)

    def follow(self, job_id: str, *, after: int = 0) -> Iterator[FollowedEvent]:
        """Events of a job after event ``after``, until it has ended; broken connections are made again."""
        return follow_events(self._transport, quote(job_id, safe=""), after=after)

    def wait(self, job_id: str, *, timeout_s: float | None = None) -> JobDetail:
        """Wait until the job has ended. Raises ``WaitTimeoutError``; the job goes on then."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = 0.1
        while True:
            job = self.job(job_id)
            if job.finished_at is not None:
                return job
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeoutError(
                    f"job {job_id} is {job.state} after {timeout_s:g} s; it goes on", state=job.state
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 2.0)

    # ---- parts of a job

    def metrics(
        self,
        job_id: str,
        *,
        names: Iterable[str] = (),
        ranks: Iterable[int] = (),
        after_step: int | None = None,
    ) -> tuple[SeriesView, ...]:
        """Series by name and rank, all pages together."""
        params: dict[str, Any] = {"name": list(names), "rank": list(ranks)}
        pages: list[MetricsView] = []
        while True:
            if after_step is not None:
                params["after_step"] = after_step
            response = self._get(f"/v1/jobs/{quote(job_id, safe='')}/metrics", params=params)
            pages.append(MetricsView.model_validate_json(response.content))
            after_step = pages[-1].next_after_step
            if after_step is None:
                return _join(pages)

    def plan(self, job_id: str) -> PlanView:
        """The plan, in data and in words, with its prediction beside what was measured."""
        return PlanView.model_validate_json(self._get(f"/v1/jobs/{quote(job_id, safe='')}/plan").content)

    def logs(self, job_id: str, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
        """The log in pieces, from the beginning or the last ``tail`` lines on; with ``follow`` until the job ends."""
        return read_log(self._transport, quote(job_id, safe=""), tail=tail, follow=follow)

    def artifacts(self, job_id: str) -> ArtifactListView:
        """The exported model and the complete checkpoints."""
        return ArtifactListView.model_validate_json(self._get(f"/v1/jobs/{quote(job_id, safe='')}/artifacts").content)

    def download(self, job_id: str, directory: str | Path, *, prefix: str = "export/") -> list[Path]:
        """Download the artifacts below ``prefix`` (empty: all) into ``directory``, without the prefix; each file whole.

        A connection that breaks begins its file anew. A running job drops old checkpoints: a file that was removed
        since it was listed is left out, with a warning. Raises ``DownloadRefusedError`` for a path that leads out of
        the directory, ``OSError`` where that cannot be written.
        """
        chosen = [item for item in self.artifacts(job_id).items if item.path.startswith(prefix)]
        files = []
        for item in chosen:
            try:
                files.append(self._download(item, Path(directory), item.path.removeprefix(prefix)))
            except RequestRefusedError as error:
                if error.problem.code != "artifact_not_found":
                    raise
                _log.warning("left out: %s", error.problem.detail)
        return files

    # ---- the rest

    def cluster(self) -> ClusterStateView:
        """The cluster as the service saw it last."""
        return ClusterStateView.model_validate_json(self._get("/v1/cluster").content)

    def datasets(self) -> tuple[DatasetView, ...]:
        """The data sets that can be asked for by name."""
        return DatasetListView.model_validate_json(self._get("/v1/datasets").content).items

    def _get(self, path: str, *, params: Mapping[str, Any] | None = None) -> httpx.Response:
        return self._transport.request("GET", path, params=params)

    def _download(self, artifact: ArtifactView, directory: Path, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or PurePosixPath(name).is_absolute():
            raise DownloadRefusedError(
                f"the service names a file outside the folder of the download: {artifact.path!r}"
            )
        target = directory.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(target.name + ".part")
        try:
            self._transport.save(artifact.href, draft)
            os.replace(draft, target)
        finally:
            draft.unlink(missing_ok=True)
        return target


def _join(pages: Iterable[MetricsView]) -> tuple[SeriesView, ...]:
    joined: dict[tuple[str, int], SeriesView] = {}
    for page in pages:
        for part in page.series:
            known = joined.get((part.name, part.rank))
            joined[part.name, part.rank] = part if known is None else _append(known, part)
    return tuple(joined[key] for key in sorted(joined))


def _append(first: SeriesView, second: SeriesView) -> SeriesView:
    return SeriesView(
        name=first.name,
        rank=first.rank,
        steps=first.steps + second.steps,
        epochs=first.epochs + second.epochs,
        values=first.values + second.values,
        at=first.at + second.at,
    )
