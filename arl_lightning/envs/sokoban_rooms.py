"""Sokoban rooms: drawn from a seed, solved exactly, split by content."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from operator import itemgetter

import numpy as np

from arl_lightning.types import ArlError

ACTIONS = ("up", "down", "left", "right")
_MOVABLES_REMOVED = str.maketrans({"P": "_", "X": "_", "S": "O", "√": "O"})
SPLIT_ENDS = {"test": 10, "validation": 20, "demonstration": 40, "train": 100}  # cumulative, per cent of all rooms
_MAX_DRAWS = 20_000  # well over the some hundred that a useful spec needs; in small rooms an error within seconds
_State = tuple[int, frozenset[int]]  # player, boxes
_Layer = dict[_State, dict[str, tuple[str, ...]]]  # for each state at one depth, a path by each first move


@dataclass(frozen=True, slots=True)
class Room:
    """One state of a closed square room; cells are numbered row by row, 0 in the upper left corner."""

    size: int
    walls: frozenset[int]
    targets: frozenset[int]
    boxes: frozenset[int]
    player: int

    def __post_init__(self) -> None:
        overlap = self.player in self.walls | self.boxes or self.walls & (self.targets | self.boxes)
        if overlap or len(self.boxes) != len(self.targets) or not _cells(self.size)[1] <= self.walls:
            raise ArlError("A Sokoban room needs closed walls, as many targets as boxes, and free cells for them.")

    @classmethod
    def parse(cls, grid: str) -> Room:
        """The room that `str` writes as `grid`; ArlError when the grid is not square or has not one player."""
        rows, cells = grid.split("\n"), grid.replace("\n", "")
        if any(len(row) != len(rows) for row in rows) or cells.count("P") + cells.count("S") != 1:
            raise ArlError(f"A Sokoban grid must be square and have one player, unlike this one:\n{grid}")
        kinds = ("#", "O√S", "X√", "PS")
        walls, targets, boxes, players = (frozenset(i for i, c in enumerate(cells) if c in kind) for kind in kinds)
        return cls(len(rows), walls, targets, boxes, *players)

    def __str__(self) -> str:
        cells = ["_"] * self.size**2
        kinds = (("#", self.walls), ("O", self.targets), ("X", self.boxes), ("√", self.boxes & self.targets))
        for cell, symbol in ((cell, symbol) for symbol, kind in kinds for cell in kind):
            cells[cell] = symbol
        cells[self.player] = "S" if self.player in self.targets else "P"
        return "\n".join("".join(cells[start : start + self.size]) for start in range(0, len(cells), self.size))

    @property
    def solved(self) -> bool:
        """True when every box stands on a target."""
        return self.boxes == self.targets

    def moved(self, action: str) -> Room:
        """The room after `action`, one of `ACTIONS`; an equal room when a wall or a second box is in the way."""
        player, boxes = _moved(self.walls, self.player, self.boxes, _offsets(self.size)[action])
        return replace(self, player=player, boxes=boxes)


@dataclass(frozen=True, slots=True)
class RoomSpec:
    """Which rooms may be drawn; the fields are those of `SokobanEnv`, which says what they mean."""

    size: int = 6
    boxes: int = 1
    min_walls: int = 1
    max_walls: int = 2
    min_solution: int = 3
    max_solution: int = 6
    split: str = "all"

    def __post_init__(self) -> None:
        if self.split not in ("all", *SPLIT_ENDS):
            raise ArlError(f"Sokoban has no split {self.split!r}: choose one of all, {', '.join(SPLIT_ENDS)}.")
        if not 0 <= self.min_walls <= self.max_walls or not 1 <= self.min_solution <= self.max_solution:
            raise ArlError(f"{self} needs 0 <= min_walls <= max_walls and 1 <= min_solution <= max_solution.")
        if self.size < 5 or self.boxes < 1 or self.max_walls + 2 * self.boxes + 1 > (self.size - 2) ** 2:
            raise ArlError(f"{self} needs size >= 5, boxes >= 1 and room for walls, boxes, targets and player.")


@lru_cache(maxsize=1024)
def generate_room(spec: RoomSpec, seed: int) -> Room:
    """The room of this seed: unsolved, of the spec's split, its optimal solution within the spec's bounds.

    ArlError when none of the seed's first 20,000 draws is such a room.
    """
    rng = random.Random(seed)
    for _ in range(_MAX_DRAWS):
        room = _draw(spec, rng)
        if _fits(room, spec):
            return room
    raise ArlError(f"No room fits {spec} in {_MAX_DRAWS} draws of seed {seed}: widen its solution bounds or its size.")


def solve(room: Room, max_moves: float = math.inf) -> tuple[str, ...] | None:
    """The moves of one optimal solution; None when there is none, or none of at most `max_moves`."""
    return next(iter(_solutions(room, max_moves).values()), None)


@lru_cache(maxsize=8192)
def optimal_actions(room: Room) -> tuple[str, ...]:
    """All moves that begin some optimal solution, in the order of `ACTIONS`; empty when solved or unsolvable."""
    solutions = _solutions(room, math.inf)
    return tuple(action for action in ACTIONS if action in solutions)


def canonical_form(room: Room) -> str:
    """The least of the eight rotations and reflections of the grid, rows joined: equal for mirror twins only."""
    return _least_image(str(room), room.size)


def canonical_layout(room: Room) -> str:
    """The canonical form of what no move can change: walls and targets."""
    return _least_image(str(room).translate(_MOVABLES_REMOVED), room.size)


def room_split(room: Room) -> str:
    """The split of the room by its layout, shared by mirror twins: no state of one split can occur in another."""
    bucket = int.from_bytes(blake2b(canonical_layout(room).encode(), digest_size=8).digest(), "big") % 100
    return next(split for split, end in SPLIT_ENDS.items() if bucket < end)


def _least_image(grid: str, size: int) -> str:
    joined = grid.replace("\n", "")
    return min("".join(image(joined)) for image in _symmetries(size))


def _draw(spec: RoomSpec, rng: random.Random) -> Room:
    """A random room, unsolved since boxes and targets are different cells, but perhaps unsolvable."""
    inside, border = _cells(spec.size)
    walls = rng.randint(spec.min_walls, spec.max_walls)
    cells = rng.sample(inside, walls + 2 * spec.boxes + 1)
    targets, boxes = cells[walls : walls + spec.boxes], cells[walls + spec.boxes : -1]
    return Room(spec.size, border.union(cells[:walls]), frozenset(targets), frozenset(boxes), cells[-1])


def _fits(room: Room, spec: RoomSpec) -> bool:
    """True when bounds and split hold; the cheapest test comes first, the search last."""
    if _fewest_moves(room) > spec.max_solution or (spec.split != "all" and room_split(room) != spec.split):
        return False
    return len(solve(room, spec.max_solution) or ()) >= spec.min_solution


def _fewest_moves(room: Room) -> int:
    """A lower bound of the solution length: the walk up to the nearest box, and each box's way to a target."""
    pushes = sum(min(_distance(room.size, box, target) for target in room.targets) for box in room.boxes)
    return pushes + min(_distance(room.size, room.player, box) for box in room.boxes) - 1


def _distance(size: int, cell: int, other: int) -> int:
    """Manhattan distance of two cells, in moves."""
    return abs(cell // size - other // size) + abs(cell % size - other % size)


def _solutions(room: Room, max_moves: float) -> dict[str, tuple[str, ...]]:
    """One optimal solution by each first move that begins any, breadth-first; `{"": ()}` when solved already."""
    layer: _Layer = {(room.player, room.boxes): {"": ()}}
    seen = set(layer)
    while True:
        solved = [paths for (_, boxes), paths in layer.items() if boxes == room.targets]
        if solved or not layer or max_moves == 0:
            return {first: path for paths in solved for first, path in paths.items()}
        following: _Layer = {}
        for (player, boxes), paths in layer.items():
            for action, offset in _offsets(room.size).items():
                state = _moved(room.walls, player, boxes, offset)
                if state not in seen:
                    longer = ((first or action, (*path, action)) for first, path in paths.items())
                    following.setdefault(state, {}).update(longer)
        seen.update(following)
        layer, max_moves = following, max_moves - 1


def _moved(walls: frozenset[int], player: int, boxes: frozenset[int], offset: int) -> _State:
    """The one rule of the game: step onto a free cell, push a single box onto a free cell, or stay."""
    ahead, beyond = player + offset, player + 2 * offset
    if ahead in walls or (ahead in boxes and (beyond in walls or beyond in boxes)):
        return player, boxes
    return ahead, boxes - {ahead} | {beyond} if ahead in boxes else boxes


@lru_cache(maxsize=32)
def _offsets(size: int) -> dict[str, int]:
    """What each of `ACTIONS` adds to a cell number."""
    return dict(zip(ACTIONS, (-size, size, -1, 1), strict=True))


@lru_cache(maxsize=32)
def _cells(size: int) -> tuple[tuple[int, ...], frozenset[int]]:
    """Cells within the outer walls, and those of the outer walls."""
    inside = tuple(row * size + column for row in range(1, size - 1) for column in range(1, size - 1))
    return inside, frozenset(range(size * size)).difference(inside)


@lru_cache(maxsize=32)
def _symmetries(size: int) -> tuple[Callable[[str], Iterable[str]], ...]:
    """The eight rotations and reflections of the square, each a reading order of the joined rows."""
    cells = np.arange(size * size).reshape(size, size)
    return tuple(itemgetter(*np.rot90(side, turn).ravel().tolist()) for side in (cells, cells.T) for turn in range(4))
