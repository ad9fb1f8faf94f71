"""The words that a tiny model's tokenizer should have for a task, as a YAML list for a recipe.

    python benchmarks/tiny_words.py webshop

Words are collected from what the environment of `configs/tasks/<task>_small.yaml` shows while its expert and chance
play tasks of all splits. Digits and punctuation are tokens anyway.
"""

from __future__ import annotations

import argparse
import random
import re
import textwrap
from typing import Any

import yaml
from task_families import by_chance, env_options, expert

from arl_lightning.envs.registration import make_text_env

WORD = {
    "webshop": re.compile(r"b\d{5}|[A-Za-z]+"),  # product ids are words
    "alfworld": re.compile(r"[A-Za-z]+"),
}


def collect(family: str, tasks: int) -> list[str]:
    """Words of two characters or more, in alphabetical order."""
    env_id, options = env_options(family, small=True)
    env: Any = make_text_env(env_id, {**options, "split": "all"})
    chance = by_chance(random.Random(0))
    words: set[str] = set()
    for seed in range(tasks):
        for act in (expert, chance):
            text, info = env.reset(seed=seed)
            over = False
            while not over:
                words.update(WORD[family].findall(" ".join([text, *(info["admissible_actions"] or ())])))
                text, _, terminated, truncated, info = env.step(act(env, info))
                over = terminated or truncated
            words.update(WORD[family].findall(text))
    env.close()
    return sorted(word for word in words if len(word) > 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", choices=sorted(WORD))
    parser.add_argument("--tasks", type=int, default=300)
    given = parser.parse_args()
    words = collect(given.family, given.tasks)
    # YAML reads words such as On and no as truth values
    found = ", ".join(word if yaml.safe_load(word) == word else f'"{word}"' for word in words)
    print(textwrap.fill(found, width=110, initial_indent="[", subsequent_indent=" ") + "]")
