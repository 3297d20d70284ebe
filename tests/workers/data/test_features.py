import numpy as np
import pytest

from workers.data.features import (
    DenseFeatures,
    SparseFeatures,
    compact,
    concatenate,
    normalize_rows,
    sparse_from_coordinates,
    windows,
)
from workers.errors import DatasetInvalidError


@pytest.fixture
def matrix() -> np.ndarray:
    """20 x 30, about 5 % full, with an empty row."""
    generator = np.random.default_rng(3)
    cells = generator.random((20, 30), dtype=np.float32)
    cells[generator.random((20, 30)) > 0.05] = 0
    cells[7] = 0
    return cells


def sparse(matrix: np.ndarray) -> SparseFeatures:
    rows, columns = np.nonzero(matrix)
    order = np.random.default_rng(0).permutation(len(rows))
    rows, columns = rows[order], columns[order]
    return sparse_from_coordinates(rows, columns, matrix[rows, columns], shape=matrix.shape)


@pytest.mark.parametrize("rows", [[], [7], [0, 19], [3, 3, 7, 0, 3]])
def test_sparse_and_dense_gather_the_same_rows(matrix, rows):
    rows = np.array(rows, dtype=np.int64)
    for features in (DenseFeatures(matrix), sparse(matrix)):
        gathered = features.gather(rows)
        assert gathered.dtype == np.float32
        assert np.array_equal(gathered, matrix[rows])


def test_what_was_gathered_is_a_copy(matrix):
    DenseFeatures(matrix).gather(np.array([0]))[:] = 99
    assert (matrix[0] != 99).all()


@pytest.mark.parametrize("row", [-1, 20])
def test_a_row_that_does_not_exist_is_refused_by_name(matrix, row):
    for features in (DenseFeatures(matrix), sparse(matrix)):
        with pytest.raises(DatasetInvalidError, match=f"features of node {row} were asked"):
            features.gather(np.array([0, row]))


def test_density_decides_the_form(matrix):
    assert isinstance(compact(DenseFeatures(matrix)), SparseFeatures)
    assert isinstance(compact(sparse(np.ones((4, 4), dtype=np.float32))), DenseFeatures)
    assert isinstance(compact(DenseFeatures(np.ones((4, 4), dtype=np.float32))), DenseFeatures)
    assert isinstance(compact(sparse(matrix)), SparseFeatures)


def test_the_form_does_not_change_the_values(matrix):
    everything = np.arange(20)
    assert np.array_equal(compact(DenseFeatures(matrix)).gather(everything), matrix)
    full = np.random.default_rng(0).random((5, 5), dtype=np.float32)
    assert np.array_equal(compact(sparse(full)).gather(np.arange(5)), full)


def test_normalised_rows_add_up_to_one_and_empty_rows_stay(matrix):
    sums = normalize_rows(sparse(matrix)).gather(np.arange(20)).sum(axis=1)
    has_words = matrix.any(axis=1)
    assert np.allclose(sums[has_words], 1, atol=1e-6)
    assert (sums[~has_words] == 0).all()


@pytest.mark.parametrize("form", [DenseFeatures, sparse])
def test_windows_undo_concatenation(matrix, form):
    offsets = np.array([0, 5, 5, 20])
    parts = list(windows(form(matrix), offsets=offsets))
    assert [part.num_rows for part in parts] == [5, 0, 15]
    assert np.array_equal(parts[2].gather(np.arange(15)), matrix[5:])
    assert np.array_equal(concatenate(tuple(parts)).gather(np.arange(20)), matrix)


@pytest.mark.parametrize("form", [DenseFeatures, sparse])
def test_the_first_value_that_is_not_finite_is_found_in_any_window(matrix, form):
    matrix[12, 4] = np.inf
    matrix[15, 2] = np.nan
    _, part = windows(form(matrix), offsets=np.array([0, 10, 20]))
    assert form(matrix).first_not_finite() == (12, 4)
    assert part.first_not_finite() == (2, 4)
