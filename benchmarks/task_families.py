"""Each task family by its expert and by chance on held-out tasks, and what a step and an episode take.

python benchmarks/task_families.py                # the full tasks of configs/tasks/
python benchmarks/task_families.py --small        # as the tiny recipes set them
python benchmarks/task_families.py --json --tasks 50 webshop
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import gymnasium
import yaml

from arl_lightning.envs.registration import make_text_env

CONFIGS = Path(__file__).parents[1] / "configs"
FAMILIES = ("sokoban", "alfworld", "webshop", "tir_math")
MESSAGES = ("I do not know.", "```python\nprint(0)\n```", "\\boxed{0}")
"""What chance says where no actions are listed."""

Act = Callable[[Any, dict[str, Any]], str]


def env_options(family: str, small: bool) -> tuple[str, dict[str, Any]]:
    """Id and options as the YAML files give them."""
    file = CONFIGS / f"tasks/{family}_small.yaml"
    if not small or not file.is_file():
        file = CONFIGS / f"tasks/{family}.yaml"
    task = yaml.safe_load(file.read_text())["data"]["init_args"]["task"]
    return task["env_id"], task["env_options"]


def held_out(env: Any, count: int) -> list[int]:
    """Seeds of the first distinct tasks."""
    found: dict[Any, int] = {}
    for seed in range(20 * count):
        found.setdefault(env.reset(seed=seed)[1]["state_key"], seed)
        if len(found) == count:
            break
    return list(found.values())


def play(env: Any, seeds: list[int], act: Act) -> dict[str, float]:
    """Success, steps, and seconds inside the environment."""
    successes, steps, reset_s, step_s, longest_s = 0, 0, 0.0, 0.0, 0.0
    for seed in seeds:
        started = time.perf_counter()
        _, info = env.reset(seed=seed)
        reset_s += time.perf_counter() - started
        over = False
        while not over:
            action = act(env, info)
            started = time.perf_counter()
            _, _, terminated, truncated, info = env.step(action)
            took = time.perf_counter() - started
            step_s, longest_s, steps, over = step_s + took, max(longest_s, took), steps + 1, terminated or truncated
        successes += info["success"]
    return {
        "success": successes / len(seeds),
        "steps": steps / len(seeds),
        "reset_ms": 1e3 * reset_s / len(seeds),
        "step_ms": 1e3 * step_s / steps,
        "longest_step_ms": 1e3 * longest_s,
        "episode_ms": 1e3 * (reset_s + step_s) / len(seeds),
    }


def expert(env: Any, info: dict[str, Any]) -> str:  # noqa: ARG001
    return cast(str, env.unwrapped.expert_actions()[0])


def by_chance(rng: random.Random) -> Act:
    return lambda _, info: rng.choice(info["admissible_actions"] or MESSAGES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=[*FAMILIES], help="which families")
    parser.add_argument("--tasks", type=int, default=200, help="held-out tasks of each")
    parser.add_argument("--small", action="store_true", help="the small tasks")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    found: dict[str, dict[str, dict[str, float]]] = {}
    print(
        "| family | policy | success | steps | reset ms | step ms | longest step ms | episode ms |\n" + "|---" * 8 + "|"
    )
    for family in options.families:
        env_id, env_kwargs = env_options(family, options.small)
        env: gymnasium.Env[str, str] = cast(Any, make_text_env(env_id, {**env_kwargs, "split": "test"}))
        seeds = held_out(env, options.tasks)
        policies = {"expert": expert, "chance": by_chance(random.Random(0))}
        found[family] = {name: play(env, seeds, act) for name, act in policies.items()}
        env.close()
        for name, row in found[family].items():
            figures = " | ".join(f"{value:.3g}" for value in row.values())
            print(f"| {family} ({len(seeds)} tasks) | {name} | {figures} |", flush=True)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
