"""A meter for claims on memory: how large is the largest floating-point tensor that any operation makes."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class LargestFloat(TorchDispatchMode):
    """Remembers the element count of the largest floating-point tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.num_elements = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_flatten(result)[0]:
            if isinstance(value, Tensor) and value.is_floating_point():
                self.num_elements = max(self.num_elements, value.untyped_storage().nbytes() // value.element_size())
        return result
