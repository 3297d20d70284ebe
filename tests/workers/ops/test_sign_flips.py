"""Signs belong to (graph, column, draw), not to where a row lies."""

import torch

from workers.ops.sign_flips import flip_signs


def test_rows_of_one_graph_flip_alike_and_columns_on_their_own() -> None:
    vectors = torch.ones(300, 64)
    graph_ids = torch.arange(300) // 100
    signs = flip_signs(vectors, graph_ids=graph_ids, draw=3)
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    for graph in range(3):
        assert (signs[graph_ids == graph] == signs[graph * 100]).all()
    assert 0.3 < (signs > 0).float().mean() < 0.7
    assert torch.equal(flip_signs(vectors[150:], graph_ids=graph_ids[150:], draw=3), signs[150:])
    assert not torch.equal(flip_signs(vectors, graph_ids=graph_ids, draw=4), signs)
