"""The data sets that can be asked for by name."""

from fastapi import APIRouter

from api.deps import BackendDep
from api.openapi import problems
from api.schemas.system import DatasetListView, DatasetView
from workers.data.datasets import list_datasets
from workers.data.paths import DataPaths

router = APIRouter(tags=["system"])


@router.get("/datasets", summary="List data sets", responses=problems())
def list_named_datasets(backend: BackendDep) -> DatasetListView:
    """Every named data set, whether its files are found on the API's machine, and its size once it was prepared."""
    paths = DataPaths(root=backend.settings.data_root, cache=backend.settings.cache)
    found = list_datasets(paths)
    return DatasetListView(items=tuple(DatasetView.model_validate(info, from_attributes=True) for info in found))
