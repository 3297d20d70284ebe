"""The cluster, the data sets, and the health of the service."""

from datetime import datetime

from pydantic import Field

from api.schemas.view import View
from planner.cluster import NodeSpec


class ClusterStateView(View):
    """The cluster as it was seen last. ``promised`` is what submitted jobs hold; a driver itself takes nothing."""

    reachable: bool
    fault: str | None = Field(default=None, description="why the cluster cannot be asked now")
    seen_at: datetime | None = None
    nodes: tuple[NodeSpec, ...] = ()
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    promised_cpus: float = 0.0
    promised_gpus: float = 0.0
    ray_version: str = ""
    dashboard_url: str = ""


class CheckView(View):
    """One thing that work needs."""

    ok: bool
    detail: str


class HealthView(View):
    """Whether the service is alive, or ready for work."""

    ok: bool
    checks: dict[str, CheckView] = Field(default_factory=dict)


class DatasetView(View):
    """One named data set; the sizes are null until it was prepared for the first time."""

    name: str
    source: str
    is_found: bool = Field(description="whether it is built in, or its files lie where the API can see them")
    where: str | None
    is_prepared: bool
    num_graphs: int | None = None
    num_nodes: int | None = None
    num_edges: int | None = None
    num_features: int | None = None
    num_classes: int | None = None


class DatasetListView(View):
    """All named data sets."""

    items: tuple[DatasetView, ...]
