"""Where a parameter is among those of all groups, while the groups change."""

import threading

import pytest

from terrace._positions import Positions

# Of several groups, each of several parameters.
SIZES = (2, 3, 2)


def groups_of(sizes):
    return [{'params': [object() for _ in range(size)]} for size in sizes]


def assert_right(positions, groups):
    every = [p for group in groups for p in group['params']]
    assert [positions.of(p, groups) for p in every] == list(range(len(every)))


def test_every_parameter_has_its_place():
    groups, positions = groups_of(SIZES), Positions()
    assert_right(positions, groups)
    assert positions.of(object(), groups) is None


def test_a_parameter_that_is_taken_out_moves_those_behind_it():
    groups, positions = groups_of(SIZES), Positions()
    assert_right(positions, groups)
    gone = groups[0]['params'].pop()
    assert_right(positions, groups)
    assert positions.of(gone, groups) is None
    groups[1]['params'].insert(0, gone)
    assert_right(positions, groups)
    groups.insert(0, groups.pop())
    assert_right(positions, groups)


class Overtaken(list):
    """Whose reader of that turn waits for another thread."""

    def __init__(self, items, turn, other):
        super().__init__(items)
        self.turn, self.other = turn, other

    def __iter__(self):
        self.turn -= 1
        if self.turn == 0:
            thread = threading.Thread(target=self.other)
            thread.start()
            thread.join()
        return super().__iter__()


@pytest.mark.parametrize('at', range(len(SIZES)))
@pytest.mark.parametrize('turn', [1, 2])
def test_a_thread_that_looks_meanwhile_moves_nothing(at, turn):
    """Both find what nobody has looked for before."""
    groups, positions, found = groups_of(SIZES), Positions(), []
    wanted = groups[-1]['params'][-1]

    def look():
        found.append(positions.of(wanted, groups))

    groups[at]['params'] = Overtaken(groups[at]['params'], turn, look)
    assert positions.of(wanted, groups) == sum(SIZES) - 1
    assert found == [sum(SIZES) - 1]
    assert_right(positions, groups)
