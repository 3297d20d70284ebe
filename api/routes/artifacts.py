"""The files that a job leaves behind."""

from collections.abc import Iterator
from datetime import UTC
from email.utils import format_datetime
from itertools import chain
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Header
from fastapi.responses import StreamingResponse

from api.byte_ranges import parse_range
from api.deps import BackendDep
from api.openapi import problems
from api.schemas.parts import ArtifactListView, ArtifactView
from api.views import job_url
from service.job_files import Artifact, ArtifactNotFoundError, find_artifact, list_artifacts
from workers.training.folder import Folder

router = APIRouter(tags=["jobs"])

_CHUNK_BYTES = 1_048_576


@router.get(
    "/jobs/{job_id}/artifacts",
    summary="List artifacts",
    responses=problems("job_not_found", "store_unavailable"),
)
def list_job_artifacts(backend: BackendDep, job_id: str) -> ArtifactListView:
    """The exported model (`export/`) and complete checkpoints (`checkpoints/`), by path."""
    job = Folder(backend.settings.job_uri(backend.jobs.store.get_job(job_id).id))
    base = f"{job_url(job_id)}/artifacts"
    items = tuple(
        ArtifactView(
            path=artifact.path,
            size_bytes=artifact.size_bytes,
            modified_at=artifact.modified_at,
            href=f"{base}/{quote(artifact.path)}",
        )
        for artifact in list_artifacts(job)
    )
    return ArtifactListView(directory=job.uri, items=items)


@router.get(
    "/jobs/{job_id}/artifacts/{path:path}",
    summary="Download an artifact",
    response_class=StreamingResponse,
    responses={
        200: {"description": "The file", "content": {"application/octet-stream": {"schema": {"type": "string"}}}},
        206: {"description": "The part that the Range header asks for"},
        **problems("job_not_found", "artifact_not_found", "range_not_satisfiable", "store_unavailable"),
    },
)
def download_artifact(
    backend: BackendDep, job_id: str, path: str, asked: Annotated[str | None, Header(alias="Range")] = None
) -> StreamingResponse:
    """One file, by a path of the list; a range of it is served, so a broken download can go on."""
    artifact = find_artifact(Folder(backend.settings.job_uri(backend.jobs.store.get_job(job_id).id)), path)
    size = artifact.size_bytes
    part = parse_range(asked, size=size)
    begin, end = part or (0, size)
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Disposition": f"attachment; filename*=utf-8''{quote(artifact.name, safe='')}",
        "Content-Length": str(end - begin),
        "Last-Modified": format_datetime(artifact.modified_at.astimezone(UTC), usegmt=True),
    }
    if part:
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
    chunks = _chunks(artifact, begin, end)
    try:
        first = next(chunks, b"")
    except FileNotFoundError:  # training drops old checkpoints
        raise ArtifactNotFoundError(f"{path!r} was removed meanwhile; list the artifacts again", path=path) from None
    return StreamingResponse(
        chain([first], chunks),
        status_code=206 if part else 200,
        headers=headers,
        media_type="application/octet-stream",
    )


def _chunks(artifact: Artifact, begin: int, end: int) -> Iterator[bytes]:
    for start in range(begin, end, _CHUNK_BYTES):
        yield artifact.read(start, min(end, start + _CHUNK_BYTES))
