import subprocess
import sys

import pytest

from workers.data.datasets import load_dataset
from workers.spec import DatasetSpec

HEAVY = {"torch", "torch_geometric", "sklearn", "scipy", "numba", "pyarrow", "pandas", "ray"}

SCRIPT = """
import sys
from pathlib import Path
from workers.data.datasets import list_datasets, load_dataset
from workers.data.paths import DataPaths
from workers.spec import DatasetSpec

paths = DataPaths(root=None, cache=Path(sys.argv[1]))
assert any(info.is_prepared for info in list_datasets(paths))
for spec in (DatasetSpec(name="karate"), DatasetSpec(name="digits-knn"), DatasetSpec(path=sys.argv[2])):
    graph = load_dataset(spec, paths=paths).graphs[0]
    graph.features.gather(graph.indices[:3])
print(*sys.modules)
"""


@pytest.fixture
def own_folder(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "nodes.csv").write_text("id,f0,label\na,1,0\nb,2,1\nc,3,1\n")
    (folder / "edges.csv").write_text("source,target\na,b\n")
    return folder


def test_listing_and_opening_prepared_sets_import_no_heavy_library(bare_paths, own_folder):
    for spec in (DatasetSpec(name="karate"), DatasetSpec(name="digits-knn"), DatasetSpec(path=str(own_folder))):
        load_dataset(spec, paths=bare_paths)
    command = [sys.executable, "-c", SCRIPT, str(bare_paths.cache), str(own_folder)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.split()
    assert not HEAVY & {module.partition(".")[0] for module in loaded}
