"""Samples → curves: what a unit costs at any size, and what a link costs at any payload.

In comes a ``Profile``, out goes a ``FittedProfile``. Every curve has non-negative coefficients (more work never costs
less), minimises the *relative* error (small sizes count as much as large ones), and remembers its worst error and what
it was fitted to, so that a prediction beyond that can be flagged.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls

from planner.errors import ProfileMismatchError
from planner.profiles import LinkSample, Profile, UnitSample

_SMALLEST = 1e-12  # seconds or bytes: nothing that was measured lies below
# Chosen: on a quiet machine curves miss their samples by a few per cent (small sizes by up to twenty).
ROUGH_FIT = 0.3
# Chosen: on a quiet machine slow mini-batches (p95) take about a third longer than the mean.
_ROUGH_SPREAD = 1.0


@dataclass(frozen=True)
class Work:
    """What a unit runs on, in total: query rows here, the (row, column) pairs that they meet, and in how many visits.

    A visit is the rows of one graph meeting the keys of one shard: graphs times shards of them.
    """

    num_visits: float
    num_rows: float
    num_pairs: float

    @property
    def terms(self) -> tuple[float, float, float, float]:
        """What the coefficients of a curve are multiplied with."""
        return 1.0, self.num_visits, self.num_rows, self.num_pairs

    def holds(self, other: "Work") -> bool:
        """Whether ``other`` is no larger in any respect."""
        return all(mine >= theirs for mine, theirs in zip(self.terms, other.terms, strict=True))


@dataclass(frozen=True)
class Curve:
    """``constant + per_visit * visits + per_row * rows + per_pair * pairs``, in seconds or bytes.

    ``points`` are what it was fitted to.
    """

    constant: float
    per_visit: float
    per_row: float
    per_pair: float
    points: tuple[tuple[Work, float], ...]

    @property
    def worst_error(self) -> float:
        """The largest |fitted − measured| / measured."""
        fitted = np.array([self.at(work) for work, _ in self.points])
        return _worst_error(fitted, np.array([value for _, value in self.points], dtype=np.float64))

    def at(self, work: Work) -> float:
        """The value for ``work``."""
        coefficients = (self.constant, self.per_visit, self.per_row, self.per_pair)
        return sum(factor * term for factor, term in zip(coefficients, work.terms, strict=True))

    def bound_at(self, work: Work) -> float:
        """A bound, if the curve lies on or above all its points and more work never takes less.

        Between points that is the least of those that are at least as large in every respect; the curve may lie below
        it there. Beyond the points no term can have grown faster than the fastest, so all of the value is taken to.
        """
        beyond = max(1.0, self._beyond(work))
        inside = Work(
            *(min(term / beyond, most) for term, most in zip(work.terms[1:], self._largest.terms[1:], strict=True))
        )
        larger = [value for point, value in self.points if point.holds(inside)]
        return beyond * (min(larger) if larger else self.at(inside))

    def covers(self, work: Work) -> bool:
        """Whether ``work`` lies within what was measured; beyond it the curve is a guess."""
        return self._beyond(work) <= 1

    @property
    def _largest(self) -> Work:
        """The most visits, rows and pairs of any point."""
        works = [work for work, _ in self.points]
        return Work(*(max(column) for column in zip(*(work.terms[1:] for work in works), strict=True)))

    def _beyond(self, work: Work) -> float:
        """How many times larger ``work`` is than the largest point; 0 where there is nothing to compare."""
        pairs = zip(work.terms[1:], self._largest.terms[1:], strict=True)
        return max((now / most for now, most in pairs if most > 0), default=0.0)


@dataclass(frozen=True)
class Link:
    """The α-β line of one operation among the ranks of the profile: ``alpha_s + beta_s_per_byte * bytes``."""

    alpha_s: float
    beta_s_per_byte: float
    worst_error: float = 0.0
    largest_bytes: int = 0

    def seconds(self, num_bytes: float) -> float:
        """Time of one operation with a payload of ``num_bytes`` per rank."""
        return self.alpha_s + self.beta_s_per_byte * num_bytes


@dataclass(frozen=True)
class UnitCurves:
    """One unit on one number of threads."""

    forward_s: Curve
    backward_s: Curve
    saved_bytes: Curve
    peak_bytes: Curve


@dataclass(frozen=True)
class FittedProfile:
    """The curves of a profile, by (unit, threads), its links by operation, and what it says of memory and device.

    ``hides_transfers``: data move beside the computing; on CPUs the cores that compute are the ones that copy.
    """

    units: Mapping[tuple[str, int], UnitCurves]
    links: Mapping[str, Link]
    parameter_bytes: int = 0
    base_bytes: int = 0
    hides_transfers: bool = False

    def unit(self, name: str, num_threads: int) -> UnitCurves:
        """Curves of a unit. Raises ``ProfileMismatchError`` when the profile has no sample of it."""
        if (name, num_threads) not in self.units:
            raise ProfileMismatchError(
                f"the profile has no sample of unit {name!r} on {num_threads} threads; it has"
                f" {sorted(self.units)}; measure it again with this number of threads"
            )
        return self.units[name, num_threads]

    def link(self, operation: str) -> Link:
        """The line of an operation. Raises ``ProfileMismatchError`` when the profile has no sample of it."""
        if operation not in self.links:
            raise ProfileMismatchError(
                f"the profile has no sample of {operation!r} between ranks; it has {sorted(self.links)};"
                " measure it again with all ranks of the job"
            )
        return self.links[operation]

    @property
    def thread_counts(self) -> tuple[int, ...]:
        """Numbers of threads on which units were measured; every model has a head."""
        return tuple(sorted(threads for unit, threads in self.units if unit == "head"))


def fit_profile(profile: Profile) -> FittedProfile:
    """Fit every unit and every link that ``profile`` has samples of."""
    samples: defaultdict[tuple[str, int], list[UnitSample]] = defaultdict(list)
    for sample in profile.units:
        samples[sample.unit, sample.num_threads].append(sample)
    links: defaultdict[str, list[LinkSample]] = defaultdict(list)
    for link in profile.links:
        links[link.operation].append(link)
    return FittedProfile(
        units={key: fit_unit(group) for key, group in samples.items()},
        links={operation: fit_link(group) for operation, group in links.items()},
        parameter_bytes=profile.parameter_bytes,
        base_bytes=profile.base_bytes,
        hides_transfers=profile.key.device_kind != "cpu",
    )


def is_rough(profile: Profile) -> bool:
    """Whether the machine was too busy during the probe for its times to be used again.

    Units are rough when their curves miss the samples by ``ROUGH_FIT`` of all the time that these took, stages when
    slow mini-batches take more than twice the mean. Links are not asked: they take little of a step.
    """
    stages = [stage for stage in profile.stages if stage.stage != "evaluate"]  # which is run once
    spread = sum(stage.p95_s - stage.seconds for stage in stages)
    if spread > _ROUGH_SPREAD * sum(stage.seconds for stage in stages):
        return True
    curves = fit_profile(profile).units
    missed = total = 0.0
    for sample in profile.units:
        unit, work = curves[sample.unit, sample.num_threads], work_of(sample)
        for curve, seconds in ((unit.forward_s, sample.forward_s), (unit.backward_s, sample.backward_s)):
            missed += abs(curve.at(work) - seconds)
            total += seconds
    return missed > ROUGH_FIT * total


def fit_unit(samples: Sequence[UnitSample]) -> UnitCurves:
    """Time by least squares; memory by least squares, then raised until no sample lies above it."""
    works = [work_of(sample) for sample in samples]

    def fit(value_of: Callable[[UnitSample], float]) -> Curve:
        return fit_curve([(work, value_of(sample)) for work, sample in zip(works, samples, strict=True)])

    def fit_above(value_of: Callable[[UnitSample], float]) -> Curve:
        curve = fit(value_of)
        fitted = [curve.at(work) for work in works]
        return _scale(curve, max(value_of(s) / f if f > 0 else 1.0 for s, f in zip(samples, fitted, strict=True)))

    return UnitCurves(
        forward_s=fit(lambda sample: sample.forward_s),
        backward_s=fit(lambda sample: sample.backward_s),
        saved_bytes=fit_above(lambda sample: sample.saved_bytes),
        peak_bytes=fit_above(lambda sample: sample.peak_bytes),
    )


def work_of(sample: UnitSample) -> Work:
    """The totals of a sample, whose rows and columns are per graph."""
    rows = sample.num_graphs * sample.num_rows
    return Work(num_visits=sample.num_graphs * sample.num_shards, num_rows=rows, num_pairs=rows * sample.num_columns)


def fit_curve(points: Sequence[tuple[Work, float]]) -> Curve:
    """Non-negative least squares of relative errors over (work, value) points; at least one point.

    Terms that the points cannot tell apart are left out, the constant first: what is not known is taken to grow.
    Points whose value is 0 bind the curve only through the others: they are weighted like the smallest above 0.
    """
    terms = np.array([work.terms for work, _ in points], dtype=np.float64)
    values = np.array([value for _, value in points], dtype=np.float64)
    used = _distinguishable(terms, _growing(terms))
    coefficients = np.zeros(4)
    coefficients[used] = _fit(terms[:, used], values)
    constant, per_visit, per_row, per_pair = coefficients.tolist()
    return Curve(
        constant=constant,
        per_visit=per_visit,
        per_row=per_row,
        per_pair=per_pair,
        points=tuple(points),
    )


def _growing(terms: np.ndarray) -> list[int]:
    """Columns that a curve can have, the most telling last. Visits that never change are part of the constant."""
    varies = len(set(terms[:, 1])) > 1
    return [0, *(column for column in (1, 2, 3) if terms[:, column].any() and (column > 1 or varies))]


def _distinguishable(terms: np.ndarray, growing: Sequence[int]) -> list[int]:
    """Those of the ``growing`` columns that are linearly independent, the last ones preferred."""
    used: list[int] = []
    for column in reversed(growing):
        chosen = terms[:, [*used, column]]
        if np.linalg.matrix_rank(chosen / np.abs(chosen).max(axis=0)) == len(used) + 1:
            used.append(column)
    return sorted(used)


def fit_link(samples: Sequence[LinkSample]) -> Link:
    """The α-β line (Hockney, Parallel Computing 20, 1994) through the samples of one operation."""
    sizes = np.array([sample.num_bytes for sample in samples], dtype=np.float64)
    seconds = np.array([sample.seconds for sample in samples], dtype=np.float64)
    design = np.stack([np.ones_like(sizes), sizes], axis=1)
    coefficients = _fit(design, seconds)
    return Link(
        alpha_s=float(coefficients[0]),
        beta_s_per_byte=float(coefficients[1]),
        worst_error=_worst_error(design @ coefficients, seconds),
        largest_bytes=int(sizes.max()),
    )


def _fit(design: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The coefficients ≥ 0 of the least relative errors."""
    if not values.any():
        return np.zeros(design.shape[1])
    weights = 1.0 / _yardstick(values)
    scale = np.maximum(np.abs(design * weights[:, None]).max(axis=0), 1e-300)  # columns of like size: nnls is unscaled
    solution, _ = nnls(design * weights[:, None] / scale, values * weights)
    coefficients: np.ndarray = solution / scale
    return coefficients


def _worst_error(fitted: np.ndarray, values: np.ndarray) -> float:
    """The largest relative error; 0 where all that was measured is 0."""
    return float((np.abs(fitted - values) / _yardstick(values)).max()) if values.any() else 0.0


def _yardstick(values: np.ndarray) -> np.ndarray:
    """What errors are measured by: the values, those of 0 like the smallest above."""
    yardstick: np.ndarray = np.maximum(values, max(values[values > 0].min(), _SMALLEST))
    return yardstick


def _scale(curve: Curve, factor: float) -> Curve:
    """A curve times ``factor``, never lowered."""
    factor = max(1.0, factor)
    return replace(
        curve,
        constant=curve.constant * factor,
        per_visit=curve.per_visit * factor,
        per_row=curve.per_row * factor,
        per_pair=curve.per_pair * factor,
    )
