import logging
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, GraphSAGE, SAGEConv

from tests.workers.mqgnn.own.modules import MODULES, WIDTH_OUT, Two, build, pyg_data
from workers.errors import DatasetInvalidError, ModelInvalidError, ObjectiveInvalidError, SeedsInvalidError
from workers.mqgnn import EpochReport, Trainer
from workers.mqgnn.seed_order import SeedOrder
from workers.spec import ScheduleSpec

DATA = pyg_data()


def make(model: nn.Module, data: Data = DATA, **settings) -> Trainer:
    return Trainer(model, data, **{"fanouts": (3, 2), "batch_size": 64, "loss": functional.cross_entropy} | settings)


def on_whole_graph(model: nn.Module, data: Data = DATA) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(data.x, data.edge_index)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_gets_the_fastest_form_that_is_right_and_is_predicted_as_on_the_whole_graph(name):
    trainer = make(build(name))
    assert (trainer.form, trainer.runs_by_calls) == MODULES[name][1:]
    trainer.fit(1)
    expected = on_whole_graph(trainer.model)
    torch.testing.assert_close(trainer.predict(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["gcn", "gat", "residuals"])
def test_with_all_neighbours_training_is_that_on_the_whole_graph_written_by_hand(name):
    trainer = make(build(name).double(), DATA, fanouts=(-1, -1))
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    losses = [report.loss for report in trainer.fit(2)]

    model = build(name).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    order = SeedOrder(np.flatnonzero(DATA.train_mask), 64, seed=0)
    total = 0.0
    for task in order.tasks(0, 2 * order.steps_per_epoch):
        seeds = torch.from_numpy(order.part(epoch=task.epoch, batch=task.batch, rank=0))
        loss = functional.cross_entropy(model(DATA.x.double(), DATA.edge_index)[seeds], DATA.y[seeds])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += len(seeds) * loss.item()
    assert sum(losses) * len(order.train_nodes) == pytest.approx(total, rel=1e-9)
    for found, expected in zip(trainer.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def test_a_module_learns_and_its_scores_are_those_of_its_predictions():
    trainer = make(Two(habit="batch norm"), optimizer=None)
    reports = trainer.fit(8, eval_every_epochs=3)
    assert [report.epoch for report in reports if report.scores] == [3, 6, 8]
    assert reports[-1].loss < reports[0].loss / 2
    hit = trainer.predict().argmax(dim=1) == DATA.y
    scores = trainer.evaluate()
    assert scores == reports[-1].scores
    assert scores["test_accuracy"] == pytest.approx(float(hit[DATA.test_mask].float().mean()))
    assert scores["test_accuracy"] > 0.8


def test_each_node_is_predicted_once_in_the_order_asked():
    trainer = make(build("gcn"))
    everything = trainer.predict()
    assert everything.shape == (300, WIDTH_OUT)
    for asked in ([7, 299, 0], np.array([5]), torch.tensor([3, 3, 1])):
        assert torch.equal(trainer.predict(asked), everything[torch.as_tensor(asked)])
    assert trainer.predict([]).shape == (0, WIDTH_OUT)
    with pytest.raises(SeedsInvalidError, match=r"node 300 was asked for; the nodes are 0\.\.299"):
        trainer.predict([2, 300])


def test_threads_beside_the_training_change_no_bit_and_the_seed_names_the_run():
    def weights(**settings) -> list[torch.Tensor]:
        trainer = make(build("dropped features"), **settings)
        trainer.fit(2)
        return list(trainer.model.parameters())

    serial, again, other = weights(), weights(pipelined=True, num_sampling_workers=2), weights(seed=1)
    assert all(map(torch.equal, serial, again))
    assert not all(map(torch.equal, serial, other))


def test_what_a_user_draws_himself_is_not_disturbed():
    trainer = make(build("dropped features"))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    trainer.fit(1)
    assert torch.equal(torch.rand(3), expected)


def test_a_run_in_two_parts_is_the_run_in_one():
    one, two = make(build("sage")), make(build("sage"))
    reports = one.fit(3)
    again = two.fit(1) + two.fit(2)
    assert [report.epoch for report in again] == [1, 2, 3]
    assert [report.loss for report in again] == [report.loss for report in reports]


def test_schedules_of_torch_and_by_name_move_the_rate():
    model = build("sage")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    halving = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    trainer = make(model, optimizer=optimizer, scheduler=halving)
    assert [report.learning_rate for report in trainer.fit(3)] == [0.1, 0.05, 0.025]

    rates = [report.learning_rate for report in make(build("sage"), scheduler=ScheduleSpec(name="cosine")).fit(4)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.001

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    patient = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0, threshold=10)
    reports = make(model, optimizer=optimizer, scheduler=patient).fit(3, eval_every_epochs=1)
    assert reports[-1].learning_rate < 0.1


def test_callbacks_hear_of_every_epoch_and_may_end_the_training():
    heard: list[EpochReport] = []

    def stop(report: EpochReport) -> bool:
        heard.append(report)
        return report.epoch == 2

    assert make(build("sage"), callbacks=[stop]).fit(10) == heard
    assert len(heard) == 2


def test_a_batch_norm_that_meets_one_seed_uses_what_it_has_learned():
    num_train = int(DATA.train_mask.sum())
    trainer = make(Two(habit="last batch norm"), batch_size=num_train - 1)
    assert all(np.isfinite(report.loss) for report in trainer.fit(2))


@pytest.mark.parametrize("name", ["gcn", "pna", "residuals"])
def test_isolated_nodes_alone_make_a_batch(name):
    nothing = torch.zeros(2, 0, dtype=torch.int64)
    data = Data(x=DATA.x[:9], edge_index=nothing, y=DATA.y[:9], train_mask=torch.ones(9, dtype=torch.bool))
    trainer = make(build(name), data, batch_size=4)
    assert all(np.isfinite(report.loss) for report in trainer.fit(2))
    assert trainer.predict().isfinite().all()


@pytest.mark.parametrize(("convolution", "form"), [(SAGEConv, "in place"), (GCNConv, "whole")])
def test_self_loops_of_the_data_are_kept_and_kernels_that_take_none_are_not_used(convolution, form):
    looped = torch.cat((DATA.edge_index, torch.tensor([[4, 9], [4, 9]])), dim=1)
    data = Data(x=DATA.x, edge_index=looped, y=DATA.y, train_mask=DATA.train_mask)
    trainer = make(Two(convolution), data, fanouts=(-1, -1))
    assert trainer.form == form
    torch.testing.assert_close(trainer.predict(), on_whole_graph(trainer.model, data), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["gcn", "mean of rows"])
def test_data_with_a_sparse_matrix_gives_it_to_the_module(name):
    counts = torch.bincount(DATA.edge_index[1], minlength=300)
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    adj_t = torch.sparse_csr_tensor(indptr, DATA.edge_index[0], torch.ones(len(DATA.edge_index[0])), size=(300, 300))
    data = Data(x=DATA.x, adj_t=adj_t, y=DATA.y, train_mask=DATA.train_mask)
    trainer = make(build(name), data)
    assert trainer.form == MODULES[name][1]
    trainer.fit(1)
    torch.testing.assert_close(trainer.predict(), on_whole_graph(trainer.model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["numbers", "labels"])
def test_numbers_and_yes_or_no_labels_are_learned_and_scored(kind):
    y = {"numbers": DATA.x[:, 0], "labels": (DATA.x[:, :2] > 0).long()}[kind]
    data = Data(x=DATA.x, edge_index=DATA.edge_index, y=y, train_mask=DATA.train_mask, val_mask=DATA.val_mask)
    model = GraphSAGE(8, 16, num_layers=2, out_channels=y[0].numel())
    reports = make(model, data, loss=None).fit(8, eval_every_epochs=8)
    metric = "roc_auc" if kind == "labels" else "mae"
    assert {*reports[-1].scores} == {f"train_{metric}", f"val_{metric}"}
    assert reports[-1].loss < reports[0].loss / 1.3


def test_the_log_says_in_one_line_why_a_module_runs_whole(caplog):
    with caplog.at_level(logging.INFO, logger="workers.mqgnn.own.forms"):
        make(build("one convolution"))
        make(build("mean of rows"))
    assert "it calls 1 convolutions; there are 2 fanouts" in caplog.text
    assert "rows meet outside of its convolutions" in caplog.text


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = GCNConv(8, WIDTH_OUT, cached=True)

    def forward(self, x, edge_index):
        return self.convolution(x, edge_index)


def test_what_cannot_be_trained_is_refused_with_a_reason():
    with pytest.raises(ModelInvalidError, match=r"convolution \(GCNConv\) has cached=True: it would keep the edges"):
        make(Cached())
    with pytest.raises(ModelInvalidError, match="has flow 'target_to_source'"):
        make(SAGEConv(8, WIDTH_OUT, flow="target_to_source"))
    with pytest.raises(ModelInvalidError, match="takes the samplers uniform, labor; found 'ladies'"):
        make(Two(), sampler="ladies")
    with pytest.raises(ObjectiveInvalidError, match=r"data.y holds the class 2, the module has 2 outputs"):
        make(SAGEConv(8, 2))
    with pytest.raises(ObjectiveInvalidError, match="must give one number"):
        make(Two(), loss=lambda outputs, y: outputs).fit(1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": None}, "data.x is needed, a tensor"),
        ({"edge_index": torch.zeros(3, 4).long()}, "data.edge_index has two rows"),
        ({"edge_index": torch.tensor([[0], [300]])}, "edge 0 .* names node 300"),
        ({"y": torch.zeros(3).long()}, "data.y has 3 rows; there are 300 nodes"),
        ({"val_mask": DATA.train_mask}, "is in data.train_mask and in data.val_mask|is in data.val_mask and in"),
        ({"train_mask": torch.ones(300, 2).bool()}, "choose one column"),
    ],
)
def test_faulty_data_is_refused_with_what_was_found(change, words):
    with pytest.raises(DatasetInvalidError, match=words):
        make(Two(), Data(**DATA.to_dict() | change))


def test_without_training_nodes_only_the_training_is_refused():
    trainer = make(build("sage"), Data(x=DATA.x, edge_index=DATA.edge_index))
    assert trainer.predict([1]).shape == (1, WIDTH_OUT)
    with pytest.raises(DatasetInvalidError, match=r"data.train_mask is empty or not there"):
        trainer.fit(1)


def test_the_door_costs_nothing_until_somebody_comes_through_it():
    code = "import sys, workers.mqgnn; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
