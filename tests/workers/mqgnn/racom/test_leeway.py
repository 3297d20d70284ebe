from workers.mqgnn.racom.leeway import Leeway


def test_where_nothing_is_known_a_step_may_be_too_large():
    leeway = Leeway()
    assert leeway.may_be_left()
    leeway.stepped(1.0)
    assert leeway.may_be_left()  # how long a stride is takes two looks


def test_far_from_the_bounds_nothing_is_kept_and_near_them_it_is():
    leeway = Leeway()
    for room in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5):
        leeway.stepped(room)
    assert not leeway.may_be_left()  # five strides
    leeway.stepped(0.35)
    assert leeway.may_be_left()


def test_after_a_new_reference_the_room_is_measured_before_it_is_trusted():
    leeway = Leeway()
    leeway.stepped(1.0)
    leeway.stepped(0.9)
    assert not leeway.may_be_left()
    leeway.room = None
    assert leeway.may_be_left()
    leeway.stepped(1.0)
    assert not leeway.may_be_left()


def test_a_step_backwards_is_no_shorter_than_none():
    leeway = Leeway()
    leeway.stepped(0.5)
    leeway.stepped(0.9)
    assert not leeway.may_be_left()
