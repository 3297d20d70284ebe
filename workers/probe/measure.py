"""Answers a probe request: all ranks measure together, rank by rank the same steps, and agree on one ``Profile``.

    describe_job ─▶ probes_for (planner) ─▶ run_probe ─▶ Profile ─▶ make_plan (planner)

What is measured are the real units of the real model on the real device, with the threads that the planner wants to
choose between. The thread count of the process is put back afterwards.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import torch
import torch.distributed as dist

from planner.cost.step_time import ELEMENT_BYTES
from planner.profiles import ProbeRequest, Profile, StageSample, UnitSample
from workers.data.graph import GraphDataset
from workers.models.registry import build_model
from workers.probe.collective import measure_links
from workers.probe.memory import measure_peak_bytes
from workers.probe.ranks import Ranks
from workers.spec import Kind, TrainSpec
from workers.training.model_fit import resolve_model

_LINK_REPEATS = 7  # a call takes a millisecond or so, and links are noisier than computing
_LARGEST_PAYLOAD_BYTES = 64 * 2**20  # a payload is sent 70 times or so; beyond this a link's line is straight


def run_probe(
    request: ProbeRequest,
    *,
    spec: TrainSpec,
    dataset: GraphDataset,
    rank: int,
    world_size: int,
    group: dist.ProcessGroup | None,
    address: str = "127.0.0.1",
) -> Profile:
    """Measure what ``request`` asks for. Collective over ``group`` (None: alone); every rank gets the same samples.
    Ranks reach this one at ``address``.

    ``base_bytes`` means something in a fresh process only. The device is this process's current CUDA device when the
    request's key says so, else the CPU.
    """
    started = time.perf_counter()
    device = _device(request)
    ranks = Ranks(rank, world_size=world_size, group=group, device=device, address=address)
    rehearse, measure = _answers(spec.kind)
    gc.collect()  # what a fresh process imported; cycles that die later would blur the meters of memory
    with _threads(request.threads[0]):
        (base_bytes,) = ranks.largest([measure_peak_bytes(lambda: rehearse(spec, ranks=ranks), device=device)])
        parameter_bytes = _parameter_bytes(spec, dataset)  # no model before: the first one brings libraries along
        links = measure_links(_payloads(request, parameter_bytes), ranks=ranks, repeats=_LINK_REPEATS)
        samples = measure(request, spec=spec, dataset=dataset, ranks=ranks)
    return Profile(
        key=request.key,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        duration_s=time.perf_counter() - started,
        units=tuple(sample for sample in samples if isinstance(sample, UnitSample)),
        links=links,
        stages=tuple(sample for sample in samples if isinstance(sample, StageSample)),
        parameter_bytes=parameter_bytes,
        base_bytes=round(base_bytes),
    )


def _answers(kind: Kind) -> tuple[Callable[..., None], Callable[..., tuple[UnitSample | StageSample, ...]]]:
    """(rehearse, measure) for a kind of job.

    Imported when asked for: one kind must not pay for the libraries of the other, neither in seconds nor in the memory
    that counts as there already.
    """
    if kind == "mqgnn":
        from workers.probe.stages import measure_stages, rehearse_stages

        return rehearse_stages, measure_stages
    from workers.probe.compute import measure_units, rehearse_units

    return rehearse_units, measure_units


def _device(request: ProbeRequest) -> torch.device:
    if request.key.device_kind == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _payloads(request: ProbeRequest, parameter_bytes: int) -> tuple[int, ...]:
    """What was asked for, and the gradients that every step sums, which only the model itself can tell."""
    if not request.link_bytes:
        return ()
    return tuple(sorted({*request.link_bytes, min(parameter_bytes, _LARGEST_PAYLOAD_BYTES)}))


def _parameter_bytes(spec: TrainSpec, dataset: GraphDataset) -> int:
    with torch.device("meta"):  # shapes only
        model = build_model(
            resolve_model(spec.model, dataset), num_features=dataset.num_features, num_classes=dataset.num_classes
        )
    return sum(parameter.numel() for parameter in model.parameters()) * ELEMENT_BYTES[spec.training.dtype]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
