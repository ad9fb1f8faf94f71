import random
from typing import Any

import pytest

from arl_lightning.envs.sokoban_rooms import (
    ACTIONS,
    Room,
    RoomSpec,
    canonical_form,
    canonical_layout,
    generate_room,
    optimal_actions,
    room_split,
    solve,
)
from arl_lightning.types import ArlError

# Box two cells down and one right of its way. Down first: right, down, down | left, down, right = 6 moves.
# Right first: down, right | up, right, down, down = 6 moves. Three pushes, one step up to the box and two steps
# around it cannot be saved, so 6 is optimal and both `down` and `right` begin an optimal solution.
SIX_MOVES = "######\n#P___#\n#_X__#\n#____#\n#__O_#\n######"
ONE_PUSH = "#####\n#PXO#\n#___#\n#___#\n#####"
LOST = "#####\n#X_P#\n#_O_#\n#___#\n#####"  # a box in a corner
CORNER_WALK = "#####\n#___#\n#_XP#\n#_O_#\n#####"  # up, left, then push down: 3 moves
ALL_SYMBOLS = "######\n#S√__#\n#_X__#\n#____#\n#____#\n######"


def images(grid: str) -> list[str]:
    """The eight images of a grid, by turning it by hand a quarter at a time."""
    found, rows = [], grid.split("\n")
    for _ in range(4):
        rows = ["".join(column) for column in zip(*rows[::-1], strict=True)]
        found += ["\n".join(rows), "\n".join(row[::-1] for row in rows)]
    return found


def test_a_room_reads_back_as_it_is_written() -> None:
    for grid in (SIX_MOVES, ONE_PUSH, LOST, ALL_SYMBOLS):
        assert str(Room.parse(grid)) == grid


def test_a_grid_that_is_no_room_is_refused() -> None:
    no_player, no_target, hole = ONE_PUSH.replace("P", "_"), ONE_PUSH.replace("O", "_"), ONE_PUSH[:-1] + "_"
    for grid in (no_player, no_target, hole, "####\n#PXO", ""):
        with pytest.raises(ArlError):
            Room.parse(grid)


def test_a_move_walks_pushes_one_box_or_does_nothing() -> None:
    room = Room.parse("######\n#PX_O#\n#____#\n#_X_O#\n#____#\n######")
    assert str(room.moved("right")) == "######\n#_PXO#\n#____#\n#_X_O#\n#____#\n######"
    assert str(room.moved("down")) == "######\n#_X_O#\n#P___#\n#_X_O#\n#____#\n######"
    assert room.moved("up") == room  # a wall
    two_in_a_row = Room.parse("######\n#PXX_#\n#__OO#\n#____#\n#____#\n######")
    assert two_in_a_row.moved("right") == two_in_a_row
    against_the_wall = Room.parse("#####\n#OPX#\n#___#\n#___#\n#####")
    assert against_the_wall.moved("right") == against_the_wall


def test_the_solution_is_optimal() -> None:
    assert solve(Room.parse(ONE_PUSH)) == ("right",)
    assert solve(Room.parse(CORNER_WALK)) == ("up", "left", "down")
    assert len(solve(Room.parse(SIX_MOVES)) or ()) == 6


def test_the_solution_solves() -> None:
    for seed in range(20):
        room = generate_room(RoomSpec(boxes=2, max_solution=12), seed)
        for action in solve(room) or ():
            assert not room.solved
            room = room.moved(action)
        assert room.solved


def test_a_lost_room_has_no_solution_and_a_solved_one_the_empty_solution() -> None:
    assert solve(Room.parse(LOST)) is None
    assert optimal_actions(Room.parse(LOST)) == ()
    solved = Room.parse(ONE_PUSH).moved("right")
    assert solved.solved
    assert solve(solved) == ()
    assert optimal_actions(solved) == ()


def test_a_solution_longer_than_the_bound_is_not_found() -> None:
    assert solve(Room.parse(SIX_MOVES), max_moves=5) is None
    assert len(solve(Room.parse(SIX_MOVES), max_moves=6) or ()) == 6


def test_every_optimal_first_move_is_named() -> None:
    assert optimal_actions(Room.parse(ONE_PUSH)) == ("right",)
    assert optimal_actions(Room.parse(SIX_MOVES)) == ("down", "right")


def test_an_action_is_optimal_exactly_when_it_brings_the_end_one_move_nearer() -> None:
    for seed in range(50):
        room = generate_room(RoomSpec(boxes=1 + seed % 2, max_solution=9), seed)
        length = len(solve(room) or ())
        after = {action: solve(room.moved(action)) for action in ACTIONS}
        nearer = tuple(action for action in ACTIONS if (rest := after[action]) is not None and len(rest) == length - 1)
        assert optimal_actions(room) == nearer


def test_a_seed_names_its_room_whatever_was_drawn_before() -> None:
    spec = RoomSpec(split="train")
    first = [generate_room(spec, seed) for seed in range(10)]
    generate_room.cache_clear()
    random.seed(7)
    assert [generate_room(spec, seed) for seed in reversed(range(10))] == first[::-1]
    assert len(set(first)) > 5


def test_a_seed_keeps_its_room_from_version_to_version() -> None:
    # Golden rooms: a change here renames every published task.
    assert str(generate_room(RoomSpec(split="train"), 0)) == "######\n#____#\n#___##\n##_X_#\n#P_O_#\n######"
    assert str(generate_room(RoomSpec(boxes=2, split="test"), 0)) == "######\n#_O__#\n##__##\n#_X__#\n#_PXO#\n######"


def test_rooms_keep_the_bounds_of_their_spec() -> None:
    for spec in (
        RoomSpec(),
        RoomSpec(size=5, min_walls=0, max_walls=0, min_solution=1, max_solution=4),
        RoomSpec(size=7, boxes=2, min_walls=3, max_walls=5, min_solution=8, max_solution=12),
    ):
        outer_walls = 4 * (spec.size - 1)
        for seed in range(20):
            room = generate_room(spec, seed)
            assert (room.size, len(room.boxes), len(room.targets)) == (spec.size, spec.boxes, spec.boxes)
            assert spec.min_walls <= len(room.walls) - outer_walls <= spec.max_walls
            assert spec.min_solution <= len(solve(room) or ()) <= spec.max_solution
            assert not room.solved


def test_impossible_bounds_are_named() -> None:
    with pytest.raises(ArlError, match="No room fits RoomSpec"):
        generate_room(RoomSpec(boxes=3, min_solution=1, max_solution=2), 0)  # three boxes need three pushes


def test_a_spec_out_of_range_is_refused() -> None:
    out_of_range: tuple[dict[str, Any], ...] = (
        {"size": 4},
        {"boxes": 0},
        {"min_walls": 3, "max_walls": 2},
        {"min_solution": 0},
        {"min_solution": 7, "max_solution": 6},
        {"size": 5, "boxes": 4, "max_walls": 1},  # 1 + 4 + 4 + 1 = 10 things in 3 * 3 = 9 cells
    )
    for arguments in out_of_range:
        with pytest.raises(ArlError, match="needs"):
            RoomSpec(**arguments)
    with pytest.raises(ArlError, match="no split 'dev'"):
        RoomSpec(split="dev")


def test_mirror_twins_share_canonical_form_and_split() -> None:
    for grid in (SIX_MOVES, ONE_PUSH, ALL_SYMBOLS):
        assert len(set(images(grid))) == 8
        assert len({canonical_form(Room.parse(image)) for image in images(grid)}) == 1
        assert len({room_split(Room.parse(image)) for image in images(grid)}) == 1


def test_different_rooms_have_different_canonical_forms() -> None:
    room = Room.parse(SIX_MOVES)
    assert len({canonical_form(state) for state in (room, room.moved("right"), room.moved("down"))}) == 3


def test_no_state_of_one_split_can_occur_in_play_of_another() -> None:
    names = ("train", "validation", "test", "demonstration")
    rooms = {split: [generate_room(RoomSpec(split=split), seed) for seed in range(200)] for split in names}
    layouts = {split: {canonical_layout(room) for room in rooms[split]} for split in names}
    for one, other in ((a, b) for a in names for b in names if a < b):
        assert layouts[one].isdisjoint(layouts[other])
    for split in names:
        for room in rooms[split][:20]:
            played = [room.moved(action) for action in ("up", "down", "left", "right")]
            assert {room_split(state) for state in played} == {split}


def test_splits_have_their_shares() -> None:
    spec = RoomSpec(size=7, min_walls=3, max_walls=5)
    rooms = {canonical_layout(room): room for room in (generate_room(spec, seed) for seed in range(2500))}
    assert len(rooms) > 2000
    splits = [room_split(room) for room in rooms.values()]
    # Over 2,000 distinct layouts: four standard deviations of a share of 60 % are 4 * sqrt(.6 * .4 / 2000) = 4.4 %.
    for split, share in (("train", 0.6), ("demonstration", 0.2), ("validation", 0.1), ("test", 0.1)):
        assert abs(splits.count(split) / len(splits) - share) < 0.045
