"""Sokoban in text: push every box onto a target, one word a step."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text
from numpy.typing import NDArray

from arl_lightning.envs.sokoban_rooms import ACTIONS, Room, RoomSpec, generate_room, optimal_actions
from arl_lightning.types import ArlError

_INVALID_SENTENCE = "Invalid action."
_CHARSET = frozenset(string.ascii_letters + string.digits + "#_√(),.: \n")
_TILE_PIXELS = 24


class SokobanEnv(gymnasium.Env[str, str]):
    """Sokoban with the grid as observation and `up`, `down`, `left`, `right` as actions.

    Symbols: `#` wall, `_` floor, `O` target, `X` box, `P` player, `√` box on target, `S` player on target.
    A seed names a room: `reset(seed=s)` gives the identical room each time, and `reset(options={"room": grid})`
    gives the room that is written down. A move into a wall is valid and moves nothing; any other text than the four
    actions (case and outer blanks aside) is invalid, moves nothing, and counts as a step.

    Args:
        size: cells along a side of the square room, outer walls included, at least 5.
        boxes: number of boxes, and of targets.
        min_walls: fewest inner walls.
        max_walls: most inner walls.
        min_solution: fewest moves of the optimal solution, at least 1.
        max_solution: most moves of the optimal solution; more than `max_steps` draws some rooms that cannot be won.
        max_steps: steps after which an unsolved episode is truncated.
        split: rooms to draw from: `train`, `validation`, `test`, `demonstration`, or `all`; split by content.
        coordinates: whether the observation also lists row and column of player, boxes and targets, counted from 0.
        step_reward: reward of every step; 0 for a sparse reward.
        box_reward: reward of a box pushed onto a target, and its negative for one pushed off; 0 for a sparse reward.
        solved_reward: reward of the step that puts the last box onto a target, on top of the others.
        render_mode: `ansi` for the grid, `rgb_array` for a picture of 24 pixels a cell, None for neither.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # type: ignore[misc]

    def __init__(
        self,
        size: int = 6,
        boxes: int = 1,
        min_walls: int = 1,
        max_walls: int = 2,
        min_solution: int = 3,
        max_solution: int = 6,
        max_steps: int = 15,
        split: str = "all",
        coordinates: bool = False,
        step_reward: float = -0.1,
        box_reward: float = 1.0,
        solved_reward: float = 10.0,
        render_mode: str | None = None,
    ) -> None:
        if min_solution > max_steps:
            raise ArlError(f"min_solution={min_solution} exceeds max_steps={max_steps}: no room could be solved.")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ArlError(f"Sokoban does not render as {render_mode!r}: choose ansi, rgb_array or null.")
        self.room_spec = RoomSpec(size, boxes, min_walls, max_walls, min_solution, max_solution, split)
        self.max_steps = max_steps
        self.coordinates = coordinates
        self.step_reward = step_reward
        self.box_reward = box_reward
        self.solved_reward = solved_reward
        self.render_mode = render_mode
        self.observation_space = Text(_longest_observation(size, boxes, coordinates), charset=_CHARSET)
        self.action_space = Text(16, charset=frozenset(string.ascii_letters + " "))
        self._room: Room | None = None
        self._steps = 0

    @property
    def room(self) -> Room:
        """The present state of the room.

        Raises:
            ResetNeeded: there is none before the first reset.
        """
        if self._room is None:
            raise ResetNeeded("Sokoban has no room before its first reset.")
        return self._room

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The room of `seed`, or of the next seed that this environment's own generator draws.

        Args:
            seed: names the room, at least 0.
            options: `room`, a grid of the environment's size and number of boxes, is played in place of a drawn one.
        """
        super().reset(seed=seed)
        self._room = self._chosen_room(seed, (options or {}).get("room"))
        self._steps = 0
        return self._observation(valid=True), self._state(valid=True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The state after one of the four actions; after any other text the same state, one step later.

        Raises:
            ResetNeeded: the episode has not begun or is over; a second solved step would be paid twice.
        """
        before = self.room
        if before.solved or self._steps >= self.max_steps:
            raise ResetNeeded("This Sokoban episode is over: reset before the next step.")
        move = action.strip().lower()
        valid = move in ACTIONS
        self._room = after = before.moved(move) if valid else before
        self._steps += 1
        truncated = not after.solved and self._steps >= self.max_steps
        reward = self._reward(before, after)
        return self._observation(valid), reward, after.solved, truncated, self._state(valid)

    def expert_actions(self) -> tuple[str, ...]:
        """All actions that begin some optimal solution of the present state; empty when it is lost or solved."""
        return optimal_actions(self.room)

    def render(self) -> str | NDArray[np.uint8] | None:
        """The grid, or a picture `[rows, columns, 3]` of it, as `render_mode` says; None without one."""
        painters: dict[str | None, Callable[[Room], str | NDArray[np.uint8] | None]]
        painters = {"ansi": str, "rgb_array": _picture, None: lambda _: None}
        return painters[self.render_mode](self.room)

    def _chosen_room(self, seed: int | None, grid: str | None) -> Room:
        if grid is None:
            return generate_room(self.room_spec, int(self.np_random.integers(2**31)) if seed is None else seed)
        room = Room.parse(grid)
        if (room.size, len(room.boxes)) != (self.room_spec.size, self.room_spec.boxes) or room.solved:
            raise ArlError(f"The room in the options must be unsolved and fit {self.room_spec}:\n{grid}")
        return room

    def _reward(self, before: Room, after: Room) -> float:
        stored = len(after.boxes & after.targets) - len(before.boxes & before.targets)
        return self.step_reward + self.box_reward * stored + (self.solved_reward if after.solved else 0.0)

    def _observation(self, valid: bool) -> str:
        parts = [str(self.room)]
        if self.coordinates:
            parts.append(_coordinates(self.room))
        if not valid:
            parts.append(_INVALID_SENTENCE)
        return "\n".join(parts)

    def _state(self, valid: bool) -> dict[str, Any]:
        return {
            "success": self.room.solved,
            "state_key": str(self.room),
            "admissible_actions": ACTIONS,
            "task_type": f"sokoban-{self.room_spec.boxes}box",
            "action_valid": valid,
        }


def _coordinates(room: Room) -> str:
    """Row and column of player, boxes and targets, one kind a line."""

    def line(kind: str, cells: Iterable[int]) -> str:
        return f"{kind}: " + ", ".join(str(divmod(cell, room.size)) for cell in sorted(cells))

    return "\n".join((line("Player", [room.player]), line("Boxes", room.boxes), line("Targets", room.targets)))


def _longest_observation(size: int, boxes: int, coordinates: bool) -> int:
    """Characters of the grid, of the coordinates when asked for, and of the sentence about an invalid action."""
    place = len(str((size, size))) + len(", ")
    listed = len("\nPlayer: \nBoxes: \nTargets: ") + place * (1 + 2 * boxes) if coordinates else 0
    return size * (size + 1) + listed + len(_INVALID_SENTENCE)


def _picture(room: Room) -> NDArray[np.uint8]:
    """One tile a cell."""
    return np.concatenate([np.concatenate([_tile(c) for c in row], axis=1) for row in str(room).split("\n")])


@lru_cache(maxsize=7)
def _tile(symbol: str) -> NDArray[np.uint8]:
    """The picture of one symbol: each layer is a shape in one colour, painted over those before it."""
    y, x = np.mgrid[:_TILE_PIXELS, :_TILE_PIXELS] - (_TILE_PIXELS - 1) / 2
    radius, far, near = np.hypot(x, y), np.maximum(abs(x), abs(y)), np.minimum(abs(x), abs(y))
    crate, frame = far < 9, ((far > 6) | (far - near < 1.5)) & (far < 9)
    mortar = (y % 6 < 1) | ((x + 6 * (y // 6 % 2)) % 12 < 1)
    eyes = np.hypot(abs(x) - 2.5, y + 1.5) < 1.5
    floor = [(radius >= 0, 0xEDE6D6), (far > 11, 0xE0D7C3)]
    ring = [(abs(radius - 7) < 1.6, 0xCC4B46), (radius < 2.2, 0xCC4B46)]
    player = [(radius < 9, 0x26467A), (radius < 7.6, 0x4A7CC0), (eyes, 0xFFFFFF)]
    layers = {
        "#": [(radius >= 0, 0x6E6A72), (mortar, 0x4F4B54)],
        "_": floor,
        "O": floor + ring,
        "X": [*floor, (crate, 0xC58B4E), (frame, 0x8A5A2B)],
        "√": [*floor, (crate, 0x7FB069), (frame, 0x3F7D3A)],
        "P": floor + player,
        "S": [*floor, (abs(radius - 10) < 1.2, 0xCC4B46), *player],
    }[symbol]
    tile = np.zeros((_TILE_PIXELS, _TILE_PIXELS, 3), np.uint8)
    for shape, colour in layers:
        tile[shape] = tuple(colour.to_bytes(3, "big"))
    return tile
