"""The meters of memory see what is really held."""

import torch

from workers.probe.memory import count_saved_bytes, measure_peak_bytes

CPU = torch.device("cpu")
MIB = 2**20


def test_the_highest_point_is_seen_even_when_it_is_over():
    def work() -> torch.Tensor:
        torch.ones(64 * MIB, dtype=torch.uint8)
        return torch.ones(8 * MIB, dtype=torch.uint8)

    assert 60 * MIB < measure_peak_bytes(work, device=CPU) < 80 * MIB


def test_memory_that_was_freed_before_is_not_taken_for_free():
    small = [torch.ones(64 * 1024, dtype=torch.uint8) for _ in range(512)]  # below the size that goes back at once
    del small
    peak = measure_peak_bytes(lambda: [torch.ones(64 * 1024, dtype=torch.uint8) for _ in range(512)], device=CPU)
    assert peak > 28 * MIB


def test_saved_bytes_count_each_storage_once_and_parameters_never():
    x = torch.ones(1000, 100, requires_grad=True)
    weight = torch.ones(100, 50, requires_grad=True)

    def forward() -> torch.Tensor:
        hidden = (x @ weight).relu()  # keeps x for the weight's gradient, and the 1,000 x 50 result of relu
        return hidden.t() + hidden.t()

    assert count_saved_bytes(forward, owned=(weight,)) == 4 * (1000 * 100 + 1000 * 50)
    assert count_saved_bytes(forward, owned=(weight, x)) == 4 * 1000 * 50
