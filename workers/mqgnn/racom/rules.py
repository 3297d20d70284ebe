"""The rules of RaCoM as arithmetic: who may step, who waits, how often all agree, and who takes how many seeds.

Nothing here holds state or tensors, so every rule is replayed in tests. ``workers.mqgnn.racom.exchange`` asks them.
"""

import math
from collections.abc import Sequence

from planner.sync import LARGEST_SHARE, SyncRule

# How finely seeds are dealt: shares are whole parts of so many per replica.
PARTS_PER_REPLICA = 256
# Chosen: a replica keeps this much of an equal share, or its rate would no longer be measured.
_LEAST_SHARE = 1 / 16
_BISECTIONS = 100  # of the common factor of all rates, to the last bit of a double
# κ is halved and doubled by these (the contract of RaCoM), and does not fall where doubling could not bring it back.
_NEAR_THE_BOUND, _FAR_FROM_THE_BOUND, _LEAST_KAPPA = 0.8, 0.3, 2.0**-10


def must_wait(clock: int, clocks: Sequence[int], *, staleness: int) -> bool:
    """Whether a replica that has taken ``clock`` steps is further ahead of the slowest than ``staleness`` steps."""
    return clock - min(clocks) > staleness


def room(distance: float, *, reference_norm: float, drift: float) -> float:
    """How much further weights may go that lie ``distance`` from a reference of norm ``reference_norm``.

    Negative where they may not lie there; no number where ``distance`` is none.
    """
    return drift * reference_norm - distance


def flight_drift(drift: float) -> float:
    """The part of the old reference's norm that a replica may move while the next reference is still on its way.

    The new reference lies within ``drift`` of the old one's norm, so its own norm is at least (1 − drift) of that; who
    moves less than drift·(1 − drift) of the old norm is within the bound once the new reference holds.
    """
    return drift * (1 - drift)


def sync_period(rule: SyncRule, *, learning_rate: float, loss: float, first_loss: float, kappa: float) -> int:
    """Steps between two synchronisations: clip(⌊κ·min(QSR, AdaComm)⌋, 1, H_max).

    QSR = max(H_base, ⌊(α/η)²⌋) (Gu et al., ICLR 2024); AdaComm = ⌈√(F/F₀)·τ₀⌉ (Wang & Joshi, MLSys 2019).
    """
    by_rate = max(rule.base_period, math.floor(min((rule.growth_rate / max(learning_rate, 1e-12)) ** 2, 1e9)))
    by_loss = rule.first_period
    if first_loss > 0 and math.isfinite(loss):
        by_loss = math.ceil(math.sqrt(max(loss, 0.0) / first_loss) * rule.first_period)
    return max(1, min(math.floor(kappa * min(by_rate, by_loss)), rule.max_period))


def next_kappa(kappa: float, *, drift_over_bound: float) -> float:
    """κ after a period in which the replica that moved furthest used ``drift_over_bound`` of what it may."""
    if drift_over_bound > _NEAR_THE_BOUND:
        return max(kappa / 2, _LEAST_KAPPA)
    return min(1.0, kappa * 2) if drift_over_bound < _FAR_FROM_THE_BOUND else kappa


def deal_shares(rates: Sequence[float]) -> tuple[int, ...]:
    """The share of each replica in every step's seeds, in whole parts, by its ``rates`` (seeds per second).

    All take as many steps, so shares in proportion to rates let all take equally long; none is below the least or above
    the largest. Until every rate is known (positive) the shares are equal. What rounding leaves over goes to the
    largest remainders, the earlier of equals.
    """
    num = len(rates)
    if not all(math.isfinite(rate) and rate > 0 for rate in rates):
        return (PARTS_PER_REPLICA,) * num
    total, least, most = (PARTS_PER_REPLICA * part for part in (num, _LEAST_SHARE, LARGEST_SHARE))

    def scaled(factor: float) -> list[float]:
        return [min(max(factor * rate, least), most) for rate in rates]

    low, high = 0.0, most / min(rates)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if math.fsum(scaled(middle)) > total else (middle, high)
    exact = scaled(low)
    shares = [math.floor(part) for part in exact]
    left = int(total) - sum(shares)
    for place in sorted(range(num), key=lambda place: shares[place] - exact[place])[:left]:
        shares[place] += 1
    return tuple(shares)


def damping(age: int, *, staleness: int) -> float:
    """The weight of a peer's gradient that is ``age`` steps old: 1/(1 + age), and 0 beyond ``staleness``."""
    return 0.0 if age > staleness else 1 / (1 + max(0, age))
