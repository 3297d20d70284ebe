"""Fitting gives back known curves, never bends below zero, and remembers how far it can be trusted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import ProfileMismatchError
from planner.fitting import Work, fit_curve, fit_link, fit_profile, fit_unit, is_rough, work_of
from planner.profiles import LinkSample, UnitSample
from tests.planner.made_up import SIZES, sampled_profile, sampled_shape, transformer_profile, transformer_shape


def work(rows: int, columns: int, graphs: int = 1) -> Work:
    return Work(num_visits=graphs, num_rows=graphs * rows, num_pairs=graphs * rows * columns)


def unit_sample(*, rows: int, saved_bytes: int) -> UnitSample:
    return UnitSample(
        unit="head",
        num_rows=rows,
        num_columns=0,
        num_threads=1,
        forward_s=1.0,
        backward_s=1.0,
        saved_bytes=saved_bytes,
        peak_bytes=saved_bytes,
    )


def test_a_known_curve_is_found_again():
    sizes = [work(rows, columns) for rows, columns in SIZES]
    curve = fit_curve([(size, 1e-3 + 2e-6 * size.num_rows + 3e-9 * size.num_pairs) for size in sizes])
    assert (curve.constant, curve.per_visit, curve.per_row, curve.per_pair) == pytest.approx((1e-3, 0, 2e-6, 3e-9))
    assert curve.worst_error < 1e-6


def test_what_each_visit_costs_is_told_apart_from_the_constant():
    sizes = [*(work(rows, columns) for rows, columns in SIZES), work(100, 100, graphs=8)]
    curve = fit_curve([(size, 1e-3 + 5e-4 * size.num_visits + 2e-6 * size.num_rows) for size in sizes])
    assert (curve.constant, curve.per_visit, curve.per_row, curve.per_pair) == pytest.approx((1e-3, 5e-4, 2e-6, 0))


def test_one_sample_is_enough_and_is_taken_to_grow():
    curve = fit_curve([(work(100, 100), 0.5)])
    assert curve.at(work(100, 100)) == pytest.approx(0.5)
    assert curve.at(work(200, 200)) == pytest.approx(2.0)


def test_two_samples_leave_the_constant_out():
    curve = fit_curve([(work(100, 100), 1e-3), (work(400, 400), 10e-3)])
    assert curve.constant == 0
    assert curve.at(work(400, 400)) == pytest.approx(10e-3)


@given(values=st.lists(st.floats(min_value=1e-7, max_value=1e3), min_size=len(SIZES), max_size=len(SIZES)))
def test_more_work_never_costs_less_whatever_was_measured(values):
    curve = fit_curve([(work(*size), value) for size, value in zip(SIZES, values, strict=True)])
    assert curve.at(work(200, 300)) >= curve.at(work(150, 300)) >= 0


def test_small_sizes_count_as_much_as_large_ones():
    # absolute least squares would give up the small one
    curve = fit_curve([(work(10, 10), 1e-4), (work(100, 10), 1e-3), (work(10_000, 10), 1e-1)])
    assert curve.worst_error < 1e-6


def test_sizes_beyond_the_samples_are_known():
    curve = fit_curve([(work(100, 100), 1.0), (work(200, 100), 2.0)])
    assert curve.covers(work(200, 100))
    assert not curve.covers(work(201, 50))
    assert not curve.covers(work(150, 140))
    assert not curve.covers(work(10, 10, graphs=2))


@given(
    true=st.tuples(st.integers(0, 1_000_000), st.integers(0, 1000), st.integers(0, 10)),
    rows=st.integers(1, 5000),
    columns=st.integers(1, 5000),
)
def test_the_bound_holds_beyond_the_samples_even_of_one_size(true, rows, columns):
    def bytes_of(size: Work) -> float:
        return true[0] + true[1] * size.num_rows + true[2] * size.num_pairs

    small, large = work(100, 100), work(100 + rows, 100 + columns)
    curve = fit_curve([(small, bytes_of(small))])
    assert curve.bound_at(large) >= bytes_of(large) * (1 - 1e-9)


def test_between_samples_the_next_larger_one_is_the_bound():
    # 40 bytes may be taken at once, anywhere above 100 rows: a curve through both samples would promise 20 at 200
    curve = fit_curve([(Work(1, 100, 0), 10.0), (Work(1, 400, 0), 40.0)])
    assert curve.at(Work(1, 200, 0)) == pytest.approx(20)
    assert curve.bound_at(Work(1, 200, 0)) == 40
    assert curve.bound_at(Work(1, 100, 0)) == 10


def test_a_raised_curve_tells_its_own_error():
    samples = [unit_sample(rows=rows, saved_bytes=size) for rows, size in ((100, 1000), (200, 4000), (400, 4000))]
    curve = fit_unit(samples).saved_bytes
    misses = [abs(curve.at(work) - value) / value for work, value in curve.points]
    assert curve.worst_error == pytest.approx(max(misses))


def test_quiet_profiles_are_kept_and_noisy_ones_are_not():
    units = transformer_profile(transformer_shape(), num_ranks=2)
    stages = sampled_profile(sampled_shape(), num_ranks=2)
    assert not is_rough(units)
    assert not is_rough(stages)
    disturbed = [
        unit.model_copy(update={"forward_s": (20 if unit.num_rows == 400 else 1) * unit.forward_s})
        for unit in units.units
    ]
    late = [stage.model_copy(update={"p95_s": 2.5 * stage.seconds}) for stage in stages.stages]
    assert is_rough(units.model_copy(update={"units": tuple(disturbed)}))
    assert is_rough(stages.model_copy(update={"stages": tuple(late)}))
    once = stages.stages[0].model_copy(update={"stage": "evaluate", "seconds": 60.0, "p95_s": 60.0})
    assert is_rough(stages.model_copy(update={"stages": (*late, once)}))


def test_no_memory_sample_lies_above_its_curve():
    noisy = [
        UnitSample(
            unit="block",
            num_rows=rows,
            num_columns=columns,
            num_threads=1,
            forward_s=1.0,
            backward_s=1.0,
            saved_bytes=1000 * rows * (3 if rows == 400 else 1),
            peak_bytes=2000 * rows + 7_000_000 * (columns == 100),
        )
        for rows, columns in SIZES
    ]
    curves = fit_unit(noisy)
    for sample in noisy:
        assert curves.saved_bytes.at(work_of(sample)) >= sample.saved_bytes * (1 - 1e-9)
        assert curves.peak_bytes.at(work_of(sample)) >= sample.peak_bytes * (1 - 1e-9)


def test_a_known_link_is_found_again():
    samples = [
        LinkSample(operation="p2p", world_size=2, num_bytes=size, seconds=5e-5 + size / 2e9)
        for size in (4096, 65_536, 1_048_576)
    ]
    link = fit_link(samples)
    assert link.alpha_s == pytest.approx(5e-5, rel=1e-6)
    assert link.beta_s_per_byte == pytest.approx(5e-10, rel=1e-6)
    assert link.seconds(2_000_000) == pytest.approx(5e-5 + 1e-3, rel=1e-6)
    assert link.largest_bytes == 1_048_576


def test_a_profile_is_fitted_by_unit_threads_and_operation():
    shape = transformer_shape()
    fitted = fit_profile(transformer_profile(shape, num_ranks=2, threads={1: 1.0, 2: 1.5}))
    assert fitted.thread_counts == (1, 2)
    assert set(fitted.links) == {"all_reduce", "p2p"}
    assert fitted.unit("block", 2).forward_s.per_pair == pytest.approx(1e-8 / 1.5, rel=1e-6)


@pytest.mark.parametrize("ask", [lambda fitted: fitted.unit("block", 7), lambda fitted: fitted.link("p2p")])
def test_what_was_not_measured_is_refused_by_name(ask):
    fitted = fit_profile(transformer_profile(transformer_shape(), num_ranks=1))
    with pytest.raises(ProfileMismatchError, match=r"has no sample of"):
        ask(fitted)
