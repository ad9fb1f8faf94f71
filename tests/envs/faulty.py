"""A counter with planned faults; imported by its Gymnasium id `faulty:tests/Faulty-v0`, in this process or a worker."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from typing import Any

import gymnasium

ACTIONS = ("up", "stay", "raise", "hang", "exit", "kill", "nan", "huge", "unpicklable", "pid")
FAULTS = ("raise", "hang", "exit", "nan", "huge")


class FaultyEnv(gymnasium.Env[str, str]):
    """Counts `up`s from the seed; other actions do what they say, and so may any step, by chance.

    Args:
        fault_share: probability that a step does one of FAULTS instead; decided by seed, step and count.
        length: steps after which the episode ends.
        drifts: whether the process decides what is shown, so that no other process shows the same.
        refuses: whether it cannot be made.
    """

    def __init__(
        self, fault_share: float = 0.0, length: int = 20, drifts: bool = False, refuses: bool = False, split: str = ""
    ) -> None:
        if refuses:
            raise ValueError("it refuses")
        self.observation_space = self.action_space = gymnasium.spaces.Text(32)
        self.fault_share = fault_share
        self.length = length
        self.drifts = drifts

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.seed = seed or 0
        self.count, self.steps = self.seed % 1000, 0
        return self._show(True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        action = self._by_chance() or action
        reward = 1.0 if action == "up" else 0.0
        if action == "raise":
            raise RuntimeError("planned")
        if action == "hang":
            time.sleep(3600)
        if action == "exit":
            os._exit(3)
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "nan":
            reward = float("nan")
        self.count += action == "up"
        observation, info = self._show(action in ("up", "stay"))
        if action == "huge":
            observation = "x" * 10_000_000
        if action == "unpicklable":
            info["state"] = lambda: None
        if action == "pid":
            observation = str(os.getpid())
        return observation, reward, self.steps >= self.length, False, info

    def _by_chance(self) -> str | None:
        digest = hashlib.sha256(f"{self.seed} {self.steps} {self.count}".encode()).digest()
        if int.from_bytes(digest[:4], "big") >= self.fault_share * 2**32:
            return None
        return FAULTS[digest[4] % len(FAULTS)]

    def _show(self, valid: bool) -> tuple[str, dict[str, Any]]:
        shown = f"{self.count}" + (f" in {os.getpid()}" if self.drifts else "")
        info = {
            "success": self.count % 1000 >= 7,
            "state_key": self.count,
            "admissible_actions": ("up", "stay"),
            "task_type": "faulty",
            "action_valid": valid,
        }
        return shown, info


gymnasium.register("tests/Faulty-v0", entry_point="faulty:FaultyEnv")
