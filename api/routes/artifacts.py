"""The files that a job leaves behind."""

from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import FileResponse
from starlette.types import Message, Receive, Scope, Send

from api.deps import BackendDep
from api.errors import RangeError
from api.openapi import problems
from api.schemas.parts import ArtifactListView, ArtifactView
from api.views import job_url
from service.job_files import find_artifact, list_artifacts

router = APIRouter(tags=["jobs"])


class ArtifactResponse(FileResponse):
    """A file, or a part of it. Its own answer to a bad Range header is plain text; here it is raised as a problem."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file. Raises ``RangeError`` before anything is sent."""

        async def send_unless_refused(message: Message) -> None:
            if message.get("status", 200) in (400, 416):
                raise RangeError("ask for bytes that are there, as `Range: bytes=FIRST-LAST`, or leave the header out")
            await send(message)

        await super().__call__(scope, receive, send_unless_refused)


@router.get(
    "/jobs/{job_id}/artifacts",
    summary="List artifacts",
    responses=problems("job_not_found", "store_unavailable"),
)
def list_job_artifacts(backend: BackendDep, job_id: str) -> ArtifactListView:
    """The exported model (`export/`) and complete checkpoints (`checkpoints/`), by path."""
    job_dir = backend.settings.job_dir(backend.jobs.store.get_job(job_id).id)
    base = f"{job_url(job_id)}/artifacts"
    items = tuple(
        ArtifactView(
            path=artifact.path,
            size_bytes=artifact.size_bytes,
            modified_at=artifact.modified_at,
            href=f"{base}/{quote(artifact.path)}",
        )
        for artifact in list_artifacts(job_dir)
    )
    return ArtifactListView(directory=str(job_dir), items=items)


@router.get(
    "/jobs/{job_id}/artifacts/{path:path}",
    summary="Download an artifact",
    response_class=ArtifactResponse,
    responses={
        200: {"description": "The file", "content": {"application/octet-stream": {"schema": {"type": "string"}}}},
        206: {"description": "The part that the Range header asks for"},
        **problems("job_not_found", "artifact_not_found", "range_not_satisfiable", "store_unavailable"),
    },
)
def download_artifact(backend: BackendDep, job_id: str, path: str) -> ArtifactResponse:
    """One file, by a path of the list; ranges are supported, so a broken download can go on."""
    job_dir = backend.settings.job_dir(backend.jobs.store.get_job(job_id).id)
    artifact = find_artifact(job_dir, path)
    return ArtifactResponse(artifact.file, media_type="application/octet-stream", filename=artifact.file.name)
