"""The choice of an attention kernel by its name: what runs is given, what does not is refused with its reason."""

import logging

import pytest
import torch

from workers.errors import KernelUnavailableError
from workers.model_specs.transformers import GraphormerSpec, GTSpec
from workers.models.attention import Attention, choose_kernel
from workers.models.registry import build_model
from workers.ops import attention_kernels
from workers.ops.attention_kernels import PLAIN, named_kernel

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_auto_leaves_the_choice_to_the_tensors() -> None:
    assert named_kernel("auto", device=CPU, dtype=torch.float32) is None


@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_the_plain_form_runs_everywhere(device: torch.device) -> None:
    assert named_kernel("plain", device=device, dtype=torch.float64) is PLAIN


@pytest.mark.parametrize(
    ("name", "device", "dtype", "runs_on"),
    [
        ("native", CUDA, torch.float32, "runs on cpu"),
        ("native", CPU, torch.bfloat16, "torch.float32, torch.float64"),
        ("triton", CPU, torch.float32, "runs on cuda"),
        ("triton", CUDA, torch.float64, "torch.float32, torch.bfloat16"),
        ("flex", CPU, torch.float32, "runs on cuda"),
    ],
)
def test_a_kernel_that_does_not_run_there_is_refused(
    name: str, device: torch.device, dtype: torch.dtype, runs_on: str
) -> None:
    with pytest.raises(KernelUnavailableError, match=f"attention_kernel {name} was .*{runs_on}.*ask for auto"):
        named_kernel(name, device=device, dtype=dtype)


def test_without_triton_cuda_takes_the_plain_form_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attention_kernels, "find_spec", lambda name: None)
    attention_kernels._triton.cache_clear()
    try:
        for _ in range(2):
            with pytest.raises(KernelUnavailableError, match="attention_kernel triton needs the package triton"):
                named_kernel("triton", device=CUDA, dtype=torch.float32)
    finally:
        attention_kernels._triton.cache_clear()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "pip install triton" in caplog.text


def test_flex_says_in_the_log_what_it_lacks(caplog: pytest.LogCaptureFixture) -> None:
    attention_kernels._flex.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert named_kernel("flex", device=CUDA, dtype=torch.float32) is not PLAIN
    (said,) = [record.getMessage() for record in caplog.records if record.name == attention_kernels.__name__]
    assert "no dropout" in said
    assert "atomics" in said


def test_all_attention_of_a_model_takes_the_kernel_that_was_asked_for() -> None:
    model = build_model(GraphormerSpec(num_layers=2), num_features=3, num_classes=2)
    choose_kernel(model, name="plain")
    assert [part.kernel for part in model.modules() if isinstance(part, Attention)] == [PLAIN, PLAIN]
    choose_kernel(model, name="auto")
    assert [part.kernel for part in model.modules() if isinstance(part, Attention)] == [None, None]


@pytest.mark.parametrize("spec", [GTSpec(), GraphormerSpec(edge_types=2)], ids=["edges", "edge paths"])
def test_a_kernel_for_a_model_that_has_no_such_attention_is_refused(spec: GTSpec | GraphormerSpec) -> None:
    model = build_model(spec, num_features=3, num_classes=2)
    choose_kernel(model, name="auto")
    with pytest.raises(KernelUnavailableError, match="no attention over distance buckets alone"):
        choose_kernel(model, name="plain")
