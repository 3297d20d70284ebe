"""The API as an ASGI application: routes, errors, description. ``api.main`` puts a backend behind it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import Depends, FastAPI

from api.deps import Backend, require_key
from api.errors import install_error_handlers
from api.openapi import install_schema
from api.routes import artifacts, cluster, datasets, events, health, jobs, logs, metrics, plans

_DESCRIPTION = """\
Train graph transformers and sampled graph neural networks on a cluster.

Every error is a problem document (RFC 9457) with a stable `code`. Times are UTC. A job goes through the states
PENDING, PROFILING, PLANNING, SCHEDULING, RUNNING (RESTARTING) and ends FINISHED, FAILED or CANCELLED.
"""


def create_app(backend: Backend | None = None) -> FastAPI:
    """Build the application. Without a backend it describes itself and answers nothing else."""
    app = FastAPI(
        title="Graphmill",
        summary="Distributed training for graphs, over REST.",
        description=_DESCRIPTION,
        version=version("graphmill"),
        lifespan=_lifespan,
        separate_input_output_schemas=False,
        redirect_slashes=False,
    )
    app.state.backend = backend
    install_error_handlers(app)
    app.include_router(health.router)
    for module in (jobs, events, metrics, plans, logs, artifacts, cluster, datasets):
        app.include_router(module.router, prefix="/v1", dependencies=[Depends(require_key)])
    install_schema(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The dispatcher lives as long as the application."""
    backend: Backend | None = app.state.backend
    if backend is None:
        yield
        return
    backend.loop.start()
    try:
        yield
    finally:
        backend.closing = True
        backend.loop.stop()
