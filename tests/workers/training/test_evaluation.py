"""Accuracies of shards add up to what one process sees."""

import torch

from workers.training.evaluation import BestModel, accuracies, count_correct


def test_counts_of_shards_sum_to_the_counts_of_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 4, generator=generator)
    y = torch.randint(-1, 4, (50,), generator=generator)
    split = torch.randint(-1, 3, (50,), generator=generator)
    whole = count_correct(logits, y=y, split=split)
    parts = sum(count_correct(logits[i::3], y=y[i::3], split=split[i::3]) for i in range(3))
    assert torch.equal(whole, parts)
    assert int(whole[:, 1].sum()) == int(((split >= 0) & (y >= 0)).sum())


def test_accuracy_by_hand() -> None:
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
    counts = count_correct(logits, y=torch.tensor([0, 1, 1, -1]), split=torch.tensor([0, 0, 1, 2]))
    assert accuracies(counts) == {"train_accuracy": 0.5, "val_accuracy": 1.0}


def test_the_first_of_equal_models_is_kept_and_later_steps_do_not_change_it() -> None:
    model = torch.nn.Linear(2, 2)
    best = BestModel()
    assert best.offer(model, epoch=1, scores={"val_accuracy": 0.5, "test_accuracy": 0.4})
    kept = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    assert not best.offer(model, epoch=2, scores={"val_accuracy": 0.5, "test_accuracy": 0.9})
    assert best.epoch == 1
    assert best.test_accuracy == 0.4
    assert best.state is not None
    assert torch.equal(best.state["weight"], kept)
