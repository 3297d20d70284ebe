"""How much memory a piece of work holds: at its highest point, and between forward and backward."""

from collections.abc import Callable, Iterable

import torch

from workers.training.memory import PeakMemory


def measure_peak_bytes(work: Callable[[], object], *, device: torch.device) -> int:
    """Highest point of ``work`` above the level before it."""
    meter = PeakMemory(device)
    meter.start()
    result = work()
    peak = meter.peak_bytes()
    del result
    return peak


def count_saved_bytes(forward: Callable[[], object], *, owned: Iterable[torch.Tensor]) -> int:
    """Bytes that autograd keeps after ``forward``, each storage once, those of ``owned`` tensors left out.

    ``owned`` are tensors that exist anyway: parameters, and inputs that others hold.
    """
    elsewhere = {tensor.untyped_storage().data_ptr() for tensor in owned}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in elsewhere:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    del result
    return sum(kept.values())
