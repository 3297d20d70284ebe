"""Links predicted in a script."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.workers.mqgnn.own.modules import WIDTH_OUT, build, pyg_data, typed_data
from workers.errors import DatasetInvalidError
from workers.mqgnn import Trainer
from workers.mqgnn.counter_rng import Stream, stream_key
from workers.mqgnn.link_scores import score_links
from workers.mqgnn.sampling.csc import csc_of
from workers.mqgnn.sampling.links import LinkSeeder
from workers.spec import LinkSpec

LINKS = LinkSpec(num_val=0.1, num_test=0.2, eval_negatives=60)


def test_a_trainer_learns_links_and_its_predictions_are_the_embeddings_that_are_scored():
    trainer = Trainer(build("sage"), pyg_data(), fanouts=(5, 5), batch_size=128, links=LINKS)
    before = trainer.evaluate()
    trainer.fit(8)
    after = trainer.evaluate()
    assert {"val_mrr", "val_hits_at_10", "val_roc_auc", "test_mrr"} <= after.keys()
    assert after["test_roc_auc"] > before["test_roc_auc"] + 0.1  # edges within a field are drawn evenly: 0.7 at best
    assert after["test_mrr"] > before["test_mrr"]
    embeddings = trainer.predict()
    assert embeddings.shape == (300, WIDTH_OUT)


def test_a_loss_of_ones_own_meets_scores_and_what_they_stand_for():
    settings = {"fanouts": (5, 5), "batch_size": 128, "links": LINKS}
    named, own = (
        Trainer(build("sage"), pyg_data(), loss=loss, **settings)
        for loss in (None, functional.binary_cross_entropy_with_logits)
    )
    assert own.fit(1)[0].loss == pytest.approx(named.fit(1)[0].loss, rel=1e-6)


def test_with_all_neighbours_a_step_is_that_on_the_whole_graph_written_by_hand():
    trainer = Trainer(build("gcn").double(), pyg_data(), fanouts=(-1, -1), batch_size=10_000, links=LINKS)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=1.0)
    model, dataset = build("gcn").double(), trainer.dataset
    graph, links = dataset.graphs[0], dataset.links
    (report,) = trainer.fit(1)
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    embeddings = model(pyg_data().x.double(), torch.from_numpy(np.stack((graph.indices, targets))).long())
    kept = links.split == 0
    seeder = LinkSeeder(csc_of(graph), num_negatives=1)
    key = stream_key(Stream.FALSE_LINKS, 0, 1, 0)
    false = seeder.false_targets(links.sources[kept], links.targets[kept], key=key)
    ends = torch.from_numpy(np.column_stack([links.targets[kept], false]))
    scores = score_links(embeddings, torch.from_numpy(links.sources[kept]), ends)
    loss = functional.binary_cross_entropy_with_logits(scores, torch.tensor([1.0, 0.0]).expand_as(scores).double())
    loss.backward()
    assert report.loss == pytest.approx(loss.item(), rel=1e-9)
    for found, start in zip(trainer.model.parameters(), model.parameters(), strict=True):
        gradient = torch.zeros_like(start) if start.grad is None else start.grad
        torch.testing.assert_close(found, start - gradient, rtol=1e-8, atol=1e-8)


def test_links_between_kinds_of_nodes_are_refused():
    with pytest.raises(DatasetInvalidError, match="links are predicted between nodes of one kind"):
        Trainer(build("sage"), typed_data(), links=LINKS)
