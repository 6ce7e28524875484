"""Who is next: order within a queue, preferences, promises that come to nothing, and what a step costs."""

from __future__ import annotations

import random

import pytest

from jobd.dispatch.waiting_line import Caller, Callers


def caller(*queues: str, most: int = 1) -> Caller:
    return Caller(queues, "w", most, patient=True)


def joined(*those: Caller) -> Callers:
    callers = Callers()
    for one in those:
        callers.join(one)
    return callers


def test_first_come_is_first_served_within_a_queue() -> None:
    first, second, other = caller("a"), caller("b", "a"), caller("b")
    callers = joined(first, second, other)

    assert [callers.promise("a"), callers.promise("a"), callers.promise("a")] == [first, second, None]
    assert callers.promise("b") is other


def test_rank_asks_only_those_who_like_the_queue_that_much() -> None:
    second_choice, first_choice = caller("b", "a"), caller("a")
    callers = joined(second_choice, first_choice)

    assert callers.promise("a", 0) is first_choice
    assert callers.promise("a", 0) is None
    assert callers.promise("a", 1) is second_choice


def test_room_is_what_those_of_a_rank_still_want() -> None:
    callers = joined(caller("a", "b", most=5), caller("a"), caller("b", "a", most=2))

    callers.promise("a")

    assert [callers.room(0, "a"), callers.room(0, "b"), callers.room(1, "a"), callers.room(1, "b")] == [5, 2, 2, 4]
    assert (callers.ranks(), callers.queues(0)) == ([0, 1], ["a", "b"])
    assert callers.all_queues() == {"a", "b"}


def test_all_are_patient_while_nobody_is_there_who_may_leave() -> None:
    hasty = Caller(["a"], "w", 1, patient=False)
    callers = joined(caller("a"), caller("b"))

    before = callers.are_patient()
    callers.join(hasty)
    during = callers.are_patient()
    callers.leave(hasty)
    callers.leave(hasty)

    assert (before, during, callers.are_patient()) == (True, False, True)


def test_caller_with_room_for_many_is_promised_many_before_the_next_gets_one() -> None:
    many, one = caller("a", most=3), caller("a")
    callers = joined(many, one)

    assert [callers.promise("a") for _ in range(5)] == [many, many, many, one, None]


def test_promises_of_a_queue_taken_back_leave_its_line_as_it_was() -> None:
    those = [caller("a"), caller("a", "b", most=2), caller("b", "a"), caller("a")]
    callers = joined(*those)
    promised = [one for one in (callers.promise("a") for _ in range(4)) if one is not None]

    for one in reversed(promised):
        callers.take_back(one)

    assert [callers.promise("a") for _ in range(5)] == [those[0], those[1], those[1], those[2], those[3]]


def test_caller_that_leaves_with_a_promise_is_not_put_back() -> None:
    gone = caller("a")
    callers = joined(gone)
    callers.promise("a")

    callers.leave(gone)
    callers.take_back(gone)

    assert (len(callers), callers.promise("a"), callers.all_queues()) == (0, None, frozenset())


def test_queue_named_twice_counts_once() -> None:
    callers = joined(caller("a", "b", "a"))

    assert callers.promise("a") is not None
    assert callers.all_queues() == frozenset()


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_agrees_with_a_plain_list(seed: int) -> None:
    """The list is what the lines stand for: all who wait, the next one first."""
    chance = random.Random(seed)
    callers, line, promised = Callers(), list[Caller](), list[Caller]()
    for _ in range(400):
        queue = chance.choice("abcd")
        match chance.choice(["join", "join", "leave", "promise", "promise", "take back"]):
            case "join":
                new = caller(*chance.sample("abcd", chance.randint(1, 4)), most=chance.randint(1, 3))
                callers.join(new)
                line.append(new)
            case "leave" if line:
                left = line.pop(chance.randrange(len(line)))
                callers.leave(left)
            case "promise":
                expected = next((one for one in line if queue in one.queues and one.room), None)
                found = callers.promise(queue)
                assert found is expected
                promised += [found] if found is not None else []
            case "take back":
                while promised:  # a batch is settled as a whole, the last first
                    back = promised.pop()
                    if back in line and not back.room:
                        line.insert(0, line.pop(line.index(back)))
                    callers.take_back(back)
        for rank in range(4):
            wanted = sum(one.room for one in line if one.queues[rank : rank + 1] == (queue,))
            assert callers.room(rank, queue) == wanted
    assert set(callers) == set(line)
