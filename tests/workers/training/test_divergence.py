"""The loss of a step, and who is to blame when it is no number."""

import math

import pytest

from workers.errors import TrainingDivergedError
from workers.training.divergence import sum_shares


def test_shares_add_up_to_the_loss() -> None:
    assert sum_shares([0.25, 0.5, 0.0], ranks=(0, 1, 2), step=3) == 0.75


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_the_error_names_the_ranks_whose_share_is_no_number_and_no_other(bad: float) -> None:
    with pytest.raises(TrainingDivergedError, match=f"the loss became {bad} in step 3 on rank 5, 7;") as caught:
        sum_shares([1.0, bad, bad], ranks=(4, 5, 7), step=3)
    assert caught.value.details["ranks"] == [5, 7]
