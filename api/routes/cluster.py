"""The cluster behind the service."""

from fastapi import APIRouter

from api.deps import BackendDep
from api.openapi import problems
from api.schemas.system import ClusterStateView
from service.admission import Amount, promised_to

router = APIRouter(tags=["system"])


@router.get("/cluster", summary="Show the cluster", responses=problems("store_unavailable"))
def show_cluster(backend: BackendDep) -> ClusterStateView:
    """The cluster as the dispatcher saw it last. Never waits for the cluster itself."""
    view = backend.loop.dispatcher.view
    promised = sum((promised_to(job) for job in backend.jobs.store.submitted_jobs()), Amount())
    spec = view.spec
    return ClusterStateView(
        reachable=view.reachable,
        fault=view.fault,
        seen_at=view.seen_at,
        nodes=spec.nodes if spec else (),
        num_cpus=spec.num_cpus if spec else 0.0,
        num_gpus=spec.num_gpus if spec else 0.0,
        promised_cpus=promised.cpus,
        promised_gpus=promised.gpus,
        ray_version=spec.ray_version if spec else "",
        dashboard_url=backend.cluster.dashboard_url,
    )
