"""The best model is the first with the best score, in the direction of its metric; patience counts evaluations."""

import torch

from workers.training.evaluation import BestModel


def test_the_first_of_equal_models_is_kept_and_later_steps_do_not_change_it() -> None:
    model = torch.nn.Linear(2, 2)
    best = BestModel(metric="accuracy")
    assert best.offer(model, epoch=1, scores={"val_accuracy": 0.5, "test_accuracy": 0.4})
    kept = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    assert not best.offer(model, epoch=2, scores={"val_accuracy": 0.5, "test_accuracy": 0.9})
    assert best.epoch == 1
    assert best.scores["test_accuracy"] == 0.4
    assert best.state is not None
    assert torch.equal(best.state["weight"], kept)


def test_a_smaller_error_is_better_and_no_number_is_not() -> None:
    model = torch.nn.Linear(2, 2)
    best = BestModel(metric="mae")
    offers = [best.offer(model, epoch=1, scores={"val_mae": error}) for error in (2.0, 3.0, 1.0, float("nan"))]
    assert offers == [True, False, True, False]


def test_without_validation_labels_the_newest_model_is_the_best() -> None:
    best = BestModel(metric="accuracy")
    assert all(best.offer(torch.nn.Linear(1, 1), epoch=epoch, scores={"train_accuracy": 0.1}) for epoch in (1, 2))
    assert best.epoch == 2


def test_patience_counts_evaluations_since_the_best() -> None:
    best = BestModel(metric="accuracy")
    waited = []
    for epoch, score in enumerate((0.5, 0.4, 0.6, 0.6, 0.1)):
        best.offer(torch.nn.Linear(1, 1), epoch=epoch, scores={"val_accuracy": score})
        waited.append(best.has_waited(2))
    assert waited == [False, False, False, False, True]
    assert not best.has_waited(None)
