"""Alive and ready. Neither needs a key; neither says anything that is not needed to route work."""

from fastapi import APIRouter, Response

from api.deps import Backend, BackendDep
from api.schemas.system import CheckView, HealthView

router = APIRouter(tags=["system"])

_STUCK_AFTER_S = 60.0  # a round of the dispatcher asks the cluster a few times, with seconds of patience each


@router.get("/livez", summary="Is the process alive?")
async def livez() -> HealthView:
    """Asks nothing of anyone else."""
    return HealthView(ok=True)


@router.get("/readyz", summary="Can work be done?", responses={503: {"description": "Not ready", "model": HealthView}})
async def readyz(backend: BackendDep, response: Response) -> HealthView:
    """Walks the path that work takes: a write to the database, the dispatcher's rounds, an answer of the cluster."""
    checks = {
        "database": await backend.database.answer(),
        "dispatcher": _check_dispatcher(backend),
        "cluster": _check_cluster(backend),
    }
    ok = all(check.ok for check in checks.values())
    response.status_code = 200 if ok else 503
    return HealthView(ok=ok, checks=checks)


def _check_dispatcher(backend: Backend) -> CheckView:
    silence_s = backend.loop.silence_s
    if silence_s > _STUCK_AFTER_S:
        return CheckView(ok=False, detail=f"has been in one round for {silence_s:.0f} s")
    if backend.loop.fault is not None:
        return CheckView(ok=False, detail="its last round failed; see the log")
    return CheckView(ok=True, detail="makes its rounds")


def _check_cluster(backend: Backend) -> CheckView:
    view = backend.loop.dispatcher.view
    if not view.reachable:
        return CheckView(ok=False, detail="cannot be reached" if view.fault else "was not asked yet")
    return CheckView(ok=True, detail="answers")
