"""A plan in plain sentences: the reasons that are stored with it, and the whole of it for a reader.

``describe_plan`` needs nothing but the plan, so a plan from the store reads like a fresh one.
"""

from collections.abc import Sequence

from planner.caching import CacheRule, FeaturePlace
from planner.plan import MegaGraphPlan, MQGNNPlan, Prediction, RunnerUp, Stage
from planner.sampling import SamplingRule

NOISY_STAGES = (
    "Slow mini-batches took more than twice the mean, as happens when the machine is busy during the probe: the time is"
    " rough."
)

_LEAST_SHOWN_S = 0.00005  # less reads as 0.0000 s


def explain_choice(choice: str, *, num_candidates: int, num_fitting: int) -> str:
    """Which candidate won, and among how many."""
    if num_candidates == 1:
        return f"Chosen: {choice}; nothing else was possible."
    fitting = "all of which fit" if num_fitting == num_candidates else f"of which {num_fitting} fit"
    return f"Chosen: {choice}; it is the fastest of {num_candidates} candidates, {fitting} into the memory of a rank."


def explain_rank_count(
    best: MegaGraphPlan | MQGNNPlan,
    *,
    others: Sequence[MegaGraphPlan | MQGNNPlan],
    too_large: Sequence[int],
    asked: int,
) -> str:
    """Why this number of ranks, with the step time of every other one that was measured."""
    sentences = [f"{_count(best.world_size, 'rank')} take {_price(best)}"]
    sentences += [
        f"{other.world_size} would take {_price(other)}" for other in sorted(others, key=lambda plan: plan.world_size)
    ]
    sentences += [f"with {count} nothing fits into the memory of a rank" for count in too_large]
    text = "; ".join(sentences).replace("1 rank take", "1 rank takes") + "."
    if best.world_size < asked:
        text += f" So {best.world_size} of the {asked} ranks that the job may have are used."
    return text


def explain_memory(limit_bytes: int | None) -> str:
    """What the memory of a rank was held against."""
    if limit_bytes is None:
        return "The cluster does not say how much memory a rank may take, so no candidate was refused for it."
    return f"A rank may take {format_bytes(limit_bytes)} over its bare process."


def explain_threads(num_threads: int, *, num_cores: float, tried: Sequence[int]) -> str:
    """Why this number of intra-op threads."""
    threads = _count(num_threads, "thread")
    if num_cores < 1:
        return f"{1 / num_cores:.3g} ranks share a physical core, so each computes on {threads}."
    cores = f"{num_cores:.3g} physical {'core' if num_cores == 1 else 'cores'}"
    if len(tried) > 1:
        return f"A rank has {cores} to itself; of {sorted(tried)} threads, {num_threads} was the fastest in the probe."
    return f"A rank has {cores} to itself, so it computes on {threads}."


def explain_ring(*, forward_bytes: float, backward_bytes: float, cp_degree: int) -> str:
    """What context parallelism sends, per rank and layer."""
    return (
        f"Keys and values go round a ring of {cp_degree} ranks: each sends {format_bytes(forward_bytes)} per layer in"
        f" forward and {format_bytes(backward_bytes)} in backward."
    )


def explain_halo(*, forward_bytes: float, halo_rows: int, cp_degree: int) -> str:
    """What edges between shards bring."""
    return (
        f"Edges between {cp_degree} shards ask for up to {_count(halo_rows, 'row')} of the others: a rank gets"
        f" {format_bytes(forward_bytes)} per layer in forward, and sends as many gradients in backward."
    )


def explain_recompute(*, kept: tuple[float, int], recomputed: tuple[float, int], recompute: bool) -> str:
    """What keeping or recomputing activations costs; each side is (seconds per step, bytes per rank)."""
    saved = format_bytes(max(0, kept[1] - recomputed[1]))
    slower = 100 * (recomputed[0] / kept[0] - 1) if kept[0] > 0 else 0.0
    if recompute:
        return f"Recomputing the activations of the blocks saves {saved} per rank, without which nothing faster fits."
    return f"Activations are kept: recomputing them would save {saved} per rank and make a step {slower:.0f} % slower."


def explain_overlap(*, serial_s: float | None, pipelined_s: float | None, pipelined: bool) -> str:
    """What overlapping the stages of a sampled pipeline gains; None for a side that does not fit."""
    if serial_s is None or pipelined_s is None:
        return "Only one of overlapped stages and stages in a row fits into the memory of a rank."
    if pipelined:
        return f"Overlapping the stages takes {pipelined_s:.4f} s per step, one after the other {serial_s:.4f} s."
    return (
        f"The stages run one after the other ({serial_s:.4f} s per step): overlapping them would take"
        f" {pipelined_s:.4f} s, because they would share the same cores."
    )


def explain_no_overlap(num_cores: float) -> str:
    """Why the stages of a sampled pipeline cannot overlap at all."""
    cores = "less than one core" if num_cores < 1 else _count(int(num_cores), "core")
    return (
        f"The stages run one after the other: a rank has {cores}, and overlapping needs one for a sampling worker"
        " beside those of the compute threads, and the memory for its queues."
    )


def explain_actors(rule: SamplingRule, *, pace_s: float) -> str:
    """Who samples for the replicas, and how fast: a mini-batch for each of them every ``pace_s`` seconds."""
    return (
        f"{_count(rule.num_actors, 'actor')} outside of the ranks sample and prepare, if they are as fast as the ranks"
        f" were in the probe a mini-batch per replica every {pace_s:.4f} s; its way through the network is not counted."
    )


def explain_caches(cache: CacheRule, *, features: FeaturePlace) -> tuple[str, ...]:
    """What of other ranks' features a rank keeps; nothing where it holds all rows."""
    if features == "local":
        return ()
    if not cache.feature_bytes:
        return ("Features are dealt out to the ranks, and none of others' rows are kept: the job says so.",)
    return (
        f"Features are dealt out to the ranks; each keeps {format_bytes(cache.feature_bytes)} of others' rows, the"
        f" hottest by {cache.policy}. The step time was measured without them, so it is a bound.",
    )


def describe_plan(plan: MegaGraphPlan | MQGNNPlan) -> str:
    """The plan in words for people: what runs, why, what is expected, and what was not chosen. Several lines."""
    what = _describe_transformer(plan) if isinstance(plan, MegaGraphPlan) else _describe_sampled(plan)
    lines = [*what, *_describe_list("Why", plan.reasons)]
    if plan.predicted is not None:
        lines += _describe_prediction(plan.predicted)
    lines += _describe_list("Not chosen", [_describe_runner_up(entry) for entry in plan.runners_up])
    return "\n".join(lines)


def format_bytes(num_bytes: float) -> str:
    """``93 MiB``: bytes as people read them."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            value = num_bytes / size
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
    return f"{num_bytes:.0f} bytes"


def _price(plan: MegaGraphPlan | MQGNNPlan) -> str:
    """Seconds per step, and how much of them goes into sums and messages between ranks."""
    assert plan.predicted is not None, "the planner predicts every plan that it makes"
    between_s = sum(seconds for name, seconds in plan.predicted.terms_s.items() if _is_between_ranks(name))
    between = f", {between_s:.4f} s of it between ranks" if between_s else ""
    return f"{plan.predicted.step_time_s:.4f} s per step{between}"


def _is_between_ranks(term: str) -> bool:
    return term == "exchange" or term.startswith(("ring_", "halo_", "sums_")) or term.endswith("_all_reduce")


def _describe_transformer(plan: MegaGraphPlan) -> list[str]:
    lines = [f"Graph transformer on {_count(plan.world_size, 'rank')}, {_count(plan.num_threads, 'thread')} each."]
    for index, stage in enumerate(plan.stages):
        name = "The model" if len(plan.stages) == 1 else f"Stage {index} ({stage.units[0]} to {stage.units[-1]})"
        if stage.cp_degree > 1:
            rows = f"{stage.cp_degree} ranks share the nodes of a graph{_order(plan)}; {_describe_exchange(stage)}"
        else:
            rows = "every rank holds whole graphs"
        lines.append(
            f"{name} runs as {_count(stage.dp_degree, 'replica')} of {_count(stage.cp_degree, 'rank')}: {rows}."
        )
    blocks = [unit for stage in plan.stages for unit in stage.units if unit.startswith("block.")]
    lines.append(
        f"A step has {_count(plan.num_micro_batches, 'micro-batch', 'micro-batches')} per replica; activations of"
        f" {len(plan.recompute)} of {len(blocks)} blocks are recomputed in backward."
    )
    return lines


def _describe_exchange(stage: Stage) -> str:
    runs = f"runs of {stage.ulysses_degree} ranks share the heads"
    return {
        "ring": "keys and values go round a ring",
        "ulysses": "they share the heads of attention",
        "ulysses_ring": f"{runs}, keys and values go round a ring of {stage.cp_degree // stage.ulysses_degree} runs",
        "halo": "rows travel where an edge leads to another rank",
        "reduce": "only sums over nodes travel",
    }[stage.exchange]


def _order(plan: MegaGraphPlan) -> str:
    order, balance = plan.partition.order, plan.partition.balance
    return "" if plan.partition.follows_from_sizes else f" ({order} order, equal {balance})"


def _describe_sampled(plan: MQGNNPlan) -> list[str]:
    flow = "overlap in threads" if plan.pipelined else "run one after the other"
    lines = [
        f"Sampled GNN on {_count(plan.world_size, 'replica')}, {_count(plan.num_threads, 'compute thread')} each.",
        f"A step takes {plan.batch_size} seeds over all replicas and samples {list(plan.fanouts)} neighbours per hop;"
        f" its stages {flow}.",
    ]
    bounds = ", ".join(
        f"{queue.name} {queue.max_items} items or {format_bytes(queue.max_bytes)}" for queue in plan.queues
    )
    if plan.sampling.is_remote:
        lines.append(
            f"Mini-batches are made by {_count(plan.sampling.num_actors, 'actor')}; each replica asks for"
            f" {plan.num_sampling_workers} ahead, within what its queues hold at most: {bounds}."
        )
    elif plan.pipelined:
        workers = _count(plan.num_sampling_workers, "sampling worker")
        lines.append(f"Each replica has {workers}; its queues hold at most: {bounds}.")
    return lines


def _describe_prediction(predicted: Prediction) -> list[str]:
    low, high = min(predicted.memory_bytes), max(predicted.memory_bytes)
    memory = format_bytes(high) if low == high else f"{format_bytes(low)} to {format_bytes(high)}"
    lines = [f"Predicted: {predicted.step_time_s:.4f} s per optimiser step, at most {memory} per rank."]
    for name, seconds in sorted(predicted.terms_s.items(), key=lambda item: -item[1]):
        if seconds < _LEAST_SHOWN_S:
            break
        share = 100 * seconds / predicted.step_time_s if predicted.step_time_s > 0 else 0.0
        lines.append(f"  {name.replace('_', ' ')}: {seconds:.4f} s ({share:.0f} %)")
    return lines


def _describe_runner_up(entry: RunnerUp) -> str:
    price = f"{entry.step_time_s:.4f} s per step, {format_bytes(entry.memory_bytes)} per rank"
    return f"{entry.choice} ({price}): {entry.lacks}."


def _describe_list(title: str, sentences: Sequence[str]) -> list[str]:
    return [f"{title}:", *(f"  - {sentence}" for sentence in sentences)] if sentences else []


def _count(number: int, word: str, plural: str | None = None) -> str:
    return f"{number} {word if number == 1 else plural or word + 's'}"
