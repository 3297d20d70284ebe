"""Laplacian eigenvectors as positions (Dwivedi & Bresson, "A Generalization of Transformer Networks to Graphs", 2021).

They are those of I - D^-1/2 A D^-1/2 over the undirected view, taken component by component: with several components
the eigenvalue 0 has a space of its own and a solver would return any basis of it. Of every component the trivial vector
(eigenvalue 0) is left out; the k smallest other pairs of all components together are kept, a vector being zero outside
its component. Where there are fewer than k, columns of zeros follow.

A sign is free: stored with the entry of largest size positive, flipped at random in training
(``workers.ops.sign_flips``). Inside a space of equal eigenvalues the basis is the solver's: every rank must read the
same stored copy.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg

from workers.data.graph import Graph
from workers.data.graph_encodings.structure import inverse_square_roots, undirected_view

# Up to here LAPACK on the dense matrix takes less than a second and needs no luck.
LARGEST_DENSE = 800
_TIE = 1e-6  # entries this near to the largest count as equal to it: the first of them decides the sign


class Eigenvectors(NamedTuple):
    """``values`` float64 [k] ascending, ``vectors`` float64 [N, k] of length 1 each (0 where padded)."""

    values: np.ndarray
    vectors: np.ndarray


def laplacian_eigenvectors(graph: Graph, *, k: int) -> Eigenvectors:
    """The ``k`` non-trivial eigenpairs of smallest eigenvalue. Raises ``ValueError`` for ``k`` < 1."""
    if k < 1:
        raise ValueError(f"at least one eigenvector must be asked for, found k = {k}")
    pairs = sorted(_component_pairs(graph, k=k), key=lambda pair: pair[0])[:k]  # stable: ties in order of components
    values, vectors = np.zeros(k), np.zeros((graph.num_nodes, k))
    for column, (value, nodes, vector) in enumerate(pairs):
        values[column] = value
        vectors[nodes, column] = vector
    return Eigenvectors(values, vectors)


def _component_pairs(graph: Graph, *, k: int) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
    """(eigenvalue, nodes, entries at those nodes), up to ``k`` of every component."""
    indptr, indices = undirected_view(graph)
    scale = inverse_square_roots(np.diff(indptr))
    size = (graph.num_nodes, graph.num_nodes)
    adjacency = scipy.sparse.csr_matrix((np.ones(len(indices)), indices, indptr), shape=size)
    normalised = scipy.sparse.diags(scale) @ adjacency @ scipy.sparse.diags(scale)
    num_components, component = scipy.sparse.csgraph.connected_components(adjacency, directed=False)
    members = np.split(np.argsort(component, kind="stable"), np.cumsum(np.bincount(component))[:-1])
    for nodes in members[:num_components]:
        part = normalised if num_components == 1 else normalised[nodes][:, nodes]
        values, vectors = _smallest(part.tocsr(), k=min(k, len(nodes) - 1))
        for value, vector in zip(values, vectors.T, strict=True):
            yield float(value), nodes, _with_sign(vector)


def _smallest(normalised: scipy.sparse.csr_matrix, *, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The ``k`` pairs of I - ``normalised`` (connected) after the trivial one."""
    size = normalised.shape[0]
    if size <= LARGEST_DENSE or k >= size - 2:
        wanted = (0, min(k, size - 1))
        values, vectors = scipy.linalg.eigh(np.eye(size) - normalised.toarray(), subset_by_index=wanted)
    else:
        values, vectors = _lanczos(normalised, k=k + 1)
    order = np.argsort(values, kind="stable")[1 : k + 1]
    return np.maximum(values[order], 0.0), vectors[:, order]


def _lanczos(normalised: scipy.sparse.csr_matrix, *, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Lanczos on the adjacency, whose largest eigenvalues are wanted, from a start that is the same everywhere.

    On long thin graphs these crowd at 1 and it does not converge; there a factorisation is cheap, and its inverse
    spreads them.
    """
    start = np.random.default_rng(0).standard_normal(normalised.shape[0])
    try:
        values, vectors = scipy.sparse.linalg.eigsh(normalised, k=k, which="LA", v0=start, maxiter=300)
    except scipy.sparse.linalg.ArpackNoConvergence:
        values, vectors = scipy.sparse.linalg.eigsh(normalised.tocsc(), k=k, sigma=1.0 + 1e-4, which="LM", v0=start)
    return 1 - values, vectors


def _with_sign(vector: np.ndarray) -> np.ndarray:
    sizes = np.abs(vector)
    largest = int(np.argmax(sizes >= sizes.max() * (1 - _TIE)))
    return vector if vector[largest] > 0 else -vector
