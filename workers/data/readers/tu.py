"""Graph classification sets of the TU collection (Morris et al., 2020), through PyG's reader of their text files.

Node attributes, scaled, and one-hot node labels are the features, edge labels the edge types. PROTEINS and ENZYMES
come with the ten folds of Errica et al. ("A Fair Comparison of Graph Neural Networks", ICLR 2020); ``split`` chooses.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from workers.data.build import build_dataset
from workers.data.edge_columns import NO_COLUMNS, EdgeColumns
from workers.data.features import DenseFeatures, compact
from workers.data.graph import GraphDataset
from workers.data.paths import DataPaths
from workers.data.readers.many_graphs import cut_graphs
from workers.data.sources import Source, find_source, not_found
from workers.data.splits import SPLIT_NOTE, split_from_members, stratified_split
from workers.errors import DatasetInvalidError

_PUBLISHED_AT = "https://www.chrsmrrs.com/graphkerneldatasets"


def read_tu(source: Source, *, paths: DataPaths, split: int) -> GraphDataset:
    """Prepare one set. Raises ``DatasetNotFoundError`` or ``DatasetInvalidError``."""
    place = find_source(source, paths=paths)
    if place is None:
        raise not_found(source, paths=paths, download=f"it is not downloaded; {_PUBLISHED_AT} has it")
    data, slices, sizes = _read(source, folder=place / "raw")
    y = data.y.numpy().astype(np.int64)
    node_offsets, edge_offsets = (slices[name].numpy() for name in ("x", "edge_index"))
    ends = data.edge_index.numpy() + np.repeat(node_offsets[:-1], np.diff(edge_offsets))
    columns = NO_COLUMNS
    if sizes["num_edge_labels"]:
        types = data.edge_attr[:, -sizes["num_edge_labels"] :].argmax(dim=1).numpy()
        columns = EdgeColumns(types=types.astype(np.uint8))
    part, note = _split(source, y=y, place=place, index=split)
    graphs = cut_graphs(
        node_offsets=node_offsets,
        sources=ends[0],
        targets=ends[1],
        features=compact(_features(data.x.numpy(), num_attributes=sizes["num_node_attributes"])),
        y=y,
        split=part,
        columns=columns,
    )
    notes = (note, "features: node attributes of mean 0 and variance 1 over all nodes, and one column per node label")
    return build_dataset(source.name, graphs=graphs, num_classes=int(y.max()) + 1, notes=notes, level="graph")


def _read(source: Source, *, folder: Path) -> tuple[Any, dict[str, Any], dict[str, int]]:
    """PyG's (data of all graphs, where each starts, how many columns of what)."""
    from torch_geometric.io import read_tu_data

    try:
        return read_tu_data(str(folder), source.name)
    except Exception as error:  # PyG and pandas raise whatever they like
        raise DatasetInvalidError(
            f"data set {source.name}: PyG cannot read the files in {folder} ({type(error).__name__}: {error});"
            " compare them with the published ones",
            name=source.name,
        ) from error


def _features(x: np.ndarray, *, num_attributes: int) -> DenseFeatures:
    """The first columns are attributes: in their own units, as published, they would drown the labels beside them."""
    attributes = x[:, :num_attributes].astype(np.float64)
    spread = attributes.std(axis=0)
    scaled = (attributes - attributes.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return DenseFeatures(np.concatenate([scaled, x[:, num_attributes:]], axis=1).astype(np.float32))


def _split(source: Source, *, y: np.ndarray, place: Path, index: int) -> tuple[np.ndarray, str]:
    file = place / "split" / source.split_file
    if not source.split_file or not file.is_file():
        return stratified_split(y, seed=index), SPLIT_NOTE.replace("nodes, seed 0", f"graphs, seed {index}")
    fold = json.loads(file.read_text())[index]
    inner = fold["model_selection"][0]
    split = split_from_members(len(y), train=inner["train"], validation=inner["validation"], test=fold["test"])
    return split, f"published fold {index} of 10 ({source.split_file})"
