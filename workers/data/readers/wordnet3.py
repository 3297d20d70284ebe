"""WordNet 3.0 as one large graph: 117,659 synsets and 147,306 lemmas, the words of the glosses as sparse features.

Synsets are labelled with their lexicographer file and split; lemmas have neither and only carry messages. The file is a
plain .npz of CSR arrays in which each undirected edge stands once; here every edge is stored both ways. Pointers
between synsets, lemma memberships and gloss words are not told apart: the graph has one kind of edge.
"""

import zipfile
from pathlib import Path

import numpy as np

from workers.data.build import build_dataset
from workers.data.edges import from_edges, to_edges
from workers.data.features import SparseFeatures, compact
from workers.data.graph import Graph, GraphDataset
from workers.data.paths import DataPaths
from workers.data.sources import Source, find_source, not_found
from workers.errors import DatasetInvalidError

_ARRAYS = (
    *("adj_indptr", "adj_indices"),
    *("attr_indptr", "attr_indices", "attr_data", "attr_shape"),
    *("labels", "split", "class_names"),
)
_NOTES = (
    "undirected: every edge is stored both ways; lemmas have no label and are in no part of the split",
    "shipped split, stratified over the synsets",
    "features are the words of each synset's gloss, 0 or 1",
)


def read_wordnet3(source: Source, *, paths: DataPaths) -> GraphDataset:
    """Prepare WordNet3. Raises ``DatasetNotFoundError`` or ``DatasetInvalidError``."""
    place = find_source(source, paths=paths)
    if place is None:
        raise not_found(source, paths=paths, download="it is not published for download")
    arrays = _load(source, file=place / "raw" / source.raw_files[0])
    num_nodes, num_features = (int(length) for length in arrays["attr_shape"])
    features = SparseFeatures(
        indptr=arrays["attr_indptr"].astype(np.int64),
        columns=arrays["attr_indices"].astype(np.int32),
        values=arrays["attr_data"].astype(np.float32),
        num_features=num_features,
    )
    adjacency = from_edges(*to_edges(arrays["adj_indptr"], arrays["adj_indices"]), num_nodes=num_nodes)
    class_names = tuple(str(word) for word in arrays["class_names"])
    graph = Graph(
        adjacency.indptr,
        adjacency.indices,
        features=compact(features),
        y=arrays["labels"].astype(np.int64),
        split=arrays["split"].astype(np.int8),
    )
    return build_dataset(
        source.name, graphs=(graph,), num_classes=len(class_names), class_names=class_names, notes=_NOTES
    )


def _load(source: Source, *, file: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as raw:
            return {name: raw[name] for name in _ARRAYS}
    except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
        raise DatasetInvalidError(
            f"data set {source.name}: cannot read {file} ({type(error).__name__}: {error});"
            " compare it with the original",
            file=str(file),
        ) from error
