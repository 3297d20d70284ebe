"""The judgement of who has stopped answering, on made-up beats and a made-up clock."""

from dataclasses import replace

import pytest

from workers.watch.beats import Beat
from workers.watch.hung_ranks import HungRanks

LIMIT_S, PATIENT_S = 20.0, 600.0
STEPPING = Beat(
    rank=1,
    pid=77,
    node="10.0.0.2",
    phase="step",
    step=5,
    num_steps=2,
    steps_per_epoch=10,
    unit="block.0",
    count=1,
    cpu_s=0.0,
    waits=False,
    where="models/gt.py:50 in forward",
)
WAITING = replace(STEPPING, rank=0, waits=True)


def judge() -> HungRanks:
    return HungRanks(0, limit_s=LIMIT_S, patient_s=PATIENT_S, interval_s=1.0)


def first_word(hung: HungRanks, *beats: Beat, seconds: int, start: int = 0, cpu_share: float = 0.0) -> tuple[int, str]:
    """When and what is said first if ``beats`` are all that is heard, every second; (``seconds``, "") if nothing is."""
    for now in range(start, seconds):
        for beat in beats:
            hung.hear(replace(beat, cpu_s=cpu_share * now), now=now)
        if words := hung.look(now=now):
            return now, words
    return seconds, ""


def test_a_rank_that_falls_silent_is_named_with_its_place_within_the_limit() -> None:
    hung = judge()
    hung.hear(STEPPING, now=0)
    now, words = first_word(hung, WAITING, seconds=30)
    assert now == LIMIT_S + 1
    assert words.startswith("rank 1 (pid 77 on 10.0.0.2) has given no sign of life for more than 20 s")
    assert "in step 5, unit block.0" in words


def test_a_rank_that_beats_but_stands_still_is_named_while_others_wait_for_it() -> None:
    now, words = first_word(judge(), WAITING, STEPPING, seconds=30)
    assert now == LIMIT_S + 1
    assert "rank 1 (pid 77 on 10.0.0.2) has reached nothing new" in words
    assert "at models/gt.py:50 in forward" in words
    assert "rank 0" not in words


def test_a_rank_judges_itself_alike() -> None:
    hung = HungRanks(1, limit_s=LIMIT_S, patient_s=PATIENT_S, interval_s=1.0)
    assert "rank 1" in first_word(hung, WAITING, STEPPING, seconds=30)[1]


def test_nobody_is_blamed_while_nobody_waits() -> None:
    assert first_word(judge(), replace(STEPPING, rank=0), STEPPING, seconds=200)[1] == ""


def test_ranks_that_all_wait_are_left_to_the_collective() -> None:
    assert first_word(judge(), WAITING, replace(STEPPING, waits=True), seconds=200)[1] == ""


def test_progress_starts_the_clock_anew() -> None:
    hung = judge()
    assert first_word(hung, WAITING, STEPPING, seconds=15)[1] == ""
    now, words = first_word(hung, replace(WAITING, count=2), replace(STEPPING, count=2), start=15, seconds=60)
    assert words
    assert now == 15 + LIMIT_S + 1


def test_a_computing_rank_has_ten_times_the_limit_in_its_first_epoch() -> None:
    now, words = first_word(judge(), WAITING, STEPPING, seconds=400, cpu_share=1.0)
    assert now == 10 * LIMIT_S + 1
    assert "rank 1" in words


def test_a_loop_without_end_is_named_within_the_limit_once_all_steps_of_an_epoch_are_known() -> None:
    known = (replace(WAITING, num_steps=11), replace(STEPPING, num_steps=11))
    now, words = first_word(judge(), *known, seconds=400, cpu_share=1.0)
    assert now == LIMIT_S + 1
    assert "rank 1 (pid 77 on 10.0.0.2) has reached nothing new" in words


@pytest.mark.parametrize("num_steps", [2, 11])
def test_or_ten_times_the_longest_time_seen(num_steps: int) -> None:
    hung, both = judge(), (WAITING, STEPPING)
    for start in (0, 30, 60):  # steps of half a minute each
        beats = (replace(beat, count=start) for beat in both)
        assert first_word(hung, *beats, start=start, seconds=start + 30, cpu_share=1.0)[1] == ""
    last = (replace(beat, count=90, num_steps=num_steps) for beat in both)
    now, words = first_word(hung, *last, start=90, seconds=500, cpu_share=1.0)
    assert now == 90 + 10 * 30 + 1
    assert "rank 1" in words


def test_a_computing_rank_has_no_such_limit_in_its_first_step_nor_in_an_evaluation() -> None:
    first = replace(STEPPING, num_steps=1)
    assert first_word(judge(), WAITING, first, seconds=500, cpu_share=1.0)[1] == ""
    scoring = replace(STEPPING, phase="evaluation")
    assert first_word(judge(), replace(WAITING, phase="evaluation"), scoring, seconds=500, cpu_share=1.0)[1] == ""


def test_preparation_is_patient_with_silence_and_with_standing_still() -> None:
    preparing = replace(STEPPING, phase="preparation", step=0)
    hung = judge()
    hung.hear(preparing, now=0)
    now, words = first_word(hung, WAITING, seconds=700)
    assert now == PATIENT_S + 1
    assert "in the preparation" in words
    assert first_word(judge(), WAITING, preparing, seconds=200)[1] == ""


def test_who_writes_a_checkpoint_is_not_hurried_but_heard() -> None:
    saving = replace(STEPPING, phase="checkpoint", waits=True)
    assert first_word(judge(), WAITING, saving, seconds=200)[1] == ""
    hung = judge()
    hung.hear(saving, now=0)
    assert "in the checkpoint after step 5" in first_word(hung, WAITING, seconds=30)[1]


def test_who_has_left_is_not_missed() -> None:
    hung = judge()
    hung.hear(replace(STEPPING, left=True), now=0)
    assert first_word(hung, WAITING, seconds=200)[1] == ""


def test_what_one_rank_has_found_all_take_over() -> None:
    hung = judge()
    hung.hear(replace(WAITING, rank=2, left=True, verdict="rank 1 is gone"), now=0)
    assert hung.look(now=0) == "rank 1 is gone"


def test_a_judge_that_was_away_blames_nobody_for_it() -> None:
    hung = judge()
    assert first_word(hung, WAITING, STEPPING, seconds=5)[1] == ""
    assert hung.look(now=300) is None
    hung.hear(replace(STEPPING, count=2), now=301)
    assert hung.look(now=301) is None
