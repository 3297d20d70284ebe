"""The files that a job leaves behind."""

from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import FileResponse

from api.deps import BackendDep
from api.openapi import problems
from api.schemas.parts import ArtifactListView, ArtifactView
from api.views import job_url
from service.job_files import find_artifact, list_artifacts

router = APIRouter(tags=["jobs"])


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
    response_class=FileResponse,
    responses={
        200: {"description": "The file", "content": {"application/octet-stream": {"schema": {"type": "string"}}}},
        **problems("job_not_found", "artifact_not_found", "store_unavailable"),
    },
)
def download_artifact(backend: BackendDep, job_id: str, path: str) -> FileResponse:
    """One file, by a path of the list; ranges are supported, so a broken download can go on."""
    job_dir = backend.settings.job_dir(backend.jobs.store.get_job(job_id).id)
    artifact = find_artifact(job_dir, path)
    return FileResponse(artifact.file, media_type="application/octet-stream", filename=artifact.file.name)
