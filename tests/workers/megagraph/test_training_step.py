"""One optimiser step in one process: what it computes, and what it never holds."""

from collections.abc import Sequence

import torch

from planner.plan import Action
from tests.distributed.equality import Case, build, plan_of, spread
from tests.distributed.odd_graphs import build_graph, build_set, odd_set, one_graph, random_edges
from tests.kit.objectives import CROSS_ENTROPY, classify
from tests.workers.ops.largest_float import LargestFloat
from workers.comm.axis import Axis
from workers.data.graph import TEST, TRAIN, VALIDATION
from workers.megagraph.batches import ShardedBatches
from workers.megagraph.executor import Round
from workers.megagraph.training_step import evaluate_global, masked_loss, run_step
from workers.model_specs.needs import Needs


def gradients_of(case: Case, *, actions: Sequence[Action]) -> list[torch.Tensor]:
    model = build(case)
    parallel, dealer = spread(case, rank=0, model=model, plan=plan_of(case))
    run_step(
        parallel,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        loss=CROSS_ENTROPY,
        share=dealer.epoch(1)[0],
        actions=actions,
        step=1,
        draw=1,
    )
    return [parameter.grad for parameter in model.parameters()]


def test_micro_batches_in_any_order_add_up_to_the_whole_batch() -> None:
    whole = gradients_of(Case(odd_set()), actions=plan_of(Case(odd_set())).actions[0])
    interleaved = [Action(0, kind, m) for kind, m in (("F", 2), ("F", 0), ("B", 2), ("F", 1), ("B", 0), ("B", 1))]
    case = Case(odd_set(), num_micro_batches=3)
    for part, exact in zip(gradients_of(case, actions=interleaved), whole, strict=True):
        torch.testing.assert_close(part, exact, rtol=1e-10, atol=1e-12)


def test_the_loss_is_the_mean_over_labelled_training_nodes_only() -> None:
    dataset = one_graph()
    batches = ShardedBatches(
        dataset, axis=Axis(), needs=Needs(max_distance=3), dtype=torch.float64, device=torch.device("cpu")
    )
    batch = batches.batch((0,), draw=0)
    graph = dataset.graphs[0]
    logits = torch.randn(graph.num_nodes, dataset.num_classes, dtype=torch.float64)
    train = torch.from_numpy(graph.split == TRAIN)
    expected = torch.nn.functional.cross_entropy(logits[train], torch.from_numpy(graph.y)[train])
    torch.testing.assert_close(masked_loss(logits, batch, loss=CROSS_ENTROPY, num_targets=int(train.sum())), expected)


def test_evaluation_scores_every_part_and_leaves_dropout_out() -> None:
    dataset = one_graph()
    spec = Case(dataset).spec.model_copy(update={"dropout": 0.9, "input_dropout": 0.9})
    case = Case(dataset, spec=spec)
    model = build(case)
    parallel, dealer = spread(case, rank=0, model=model, plan=plan_of(case))
    scored = dealer.evaluation(num_replicas=1)
    objective = classify(dataset.num_classes)
    first, second = (evaluate_global(parallel, objective=objective, batches=scored) for _ in range(2))
    graph = dataset.graphs[0]
    ((outputs, _),) = parallel.executor.predict(Round(scored, draw=0))
    hit = outputs.argmax(dim=1).numpy() == graph.y
    for name, part in (("train", TRAIN), ("val", VALIDATION), ("test", TEST)):
        assert first[f"{name}_accuracy"] == hit[graph.split == part].mean()
    assert first == second


def test_a_step_holds_no_float_for_every_pair_of_nodes() -> None:
    num_nodes = 2500
    dataset = build_set([build_graph(num_nodes, random_edges(num_nodes, 5000, seed=1), seed=2)])
    case = Case(dataset, dtype=torch.float32)
    model = build(case)
    parallel, dealer = spread(case, rank=0, model=model, plan=plan_of(case))
    with LargestFloat() as largest:
        run_step(
            parallel,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loss=CROSS_ENTROPY,
            share=dealer.epoch(1)[0],
            actions=plan_of(case).actions[0],
            step=1,
            draw=1,
        )
    assert largest.num_elements < num_nodes**2 / 4
