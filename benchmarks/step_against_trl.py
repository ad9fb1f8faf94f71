"""One whole single-turn step (sampling, scoring, update) beside that of TRL's GRPOTrainer: seconds and memory.

    python3 -m venv /tmp/trl && /tmp/trl/bin/pip install 'torch==2.13.*' trl gymnasium
    python benchmarks/step_against_trl.py --trl-python /tmp/trl/bin/python --pairs 5 --json

A random Qwen3-architecture model is saved once and loaded by both. Both are given the same prompts, sample equally
many tokens (no stop token can be drawn), cut their rows into equal passes and take one step of AdamW a rollout. Each
half runs in a process of its own; halves take turns, so that a ratio is that of two neighbours.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
from halves import fit_ours, fit_theirs, task_seeds
from pairs import MEASURES, check_equal, compare, parse, print_table, run_pairs
from word_model import save_model

PROMPT_TOKENS, GROUPS, GROUP_SIZE, RESPONSE_TOKENS = 128, 2, 8, 128
TEMPLATE_TOKENS = 5  # start, role, end, start, role


def prompt(seed: int, vocabulary: int) -> str:
    """Words that, inside the chat template, are `PROMPT_TOKENS` tokens."""
    rng = random.Random(seed)
    return " ".join(f"w{rng.randrange(vocabulary - 10)}" for _ in range(PROMPT_TOKENS - TEMPLATE_TOKENS))


def reward(response: str) -> float:
    """A number that differs among the members of a group."""
    return float(sum(map(ord, response)) % 10)


class Words(gymnasium.Env[str, str]):
    """One turn: words are shown, and any answer is scored by `reward`."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.observation_space = self.action_space = gymnasium.spaces.Text(1_000_000)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.words = prompt(seed or 0, self.vocabulary)
        return self.words, self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", reward(action), True, False, self._info()

    def expert_actions(self) -> tuple[str, ...]:
        return ()

    def _info(self) -> dict[str, Any]:
        base = {"success": False, "state_key": self.words, "admissible_actions": None}
        return base | {"task_type": "words", "action_valid": True}


def ours(settings: Mapping[str, Any]) -> dict[str, Any]:
    from arl_lightning.datamodules.conversation import WindowContext
    from arl_lightning.datamodules.prompting import PromptTemplate, WholeMessage
    from arl_lightning.datamodules.task import Task

    gymnasium.register("bench/Words-v0", entry_point=lambda **options: Words(**options))
    options = {"vocabulary": settings["vocabulary"]}
    task = Task("bench/Words-v0", PromptTemplate(), WholeMessage(), WindowContext(0), options, max_turns=1)
    return fit_ours(
        settings["folder"],
        task,
        groups=GROUPS,
        group_size=GROUP_SIZE,
        response_tokens=RESPONSE_TOKENS,
        pass_tokens=settings["rows_per_pass"] * (PROMPT_TOKENS + RESPONSE_TOKENS),
        kl=settings["kl"],
        steps=settings["steps"],
        clock=settings["clock"],
    )


def theirs(settings: Mapping[str, Any]) -> dict[str, Any]:
    words = [prompt(seed, settings["vocabulary"]) for seed in settings["seeds"]]
    return fit_theirs(
        settings["folder"],
        [{"prompt": [{"role": "user", "content": text}]} for text in words],
        rewards=[lambda completions, **_: [reward(completion[0]["content"]) for completion in completions]],
        group_size=GROUP_SIZE,
        completion_tokens=RESPONSE_TOKENS,
        rows_per_pass=settings["rows_per_pass"],
        rows_per_step=GROUPS * GROUP_SIZE,
        kl=settings["kl"],
        steps=settings["steps"],
        clock=settings["clock"],
        checkpointing=settings["trl_checkpointing"],
    )


def main() -> None:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--vocabularies", type=int, nargs="*", default=[1_000, 151_000])
        parser.add_argument("--rows-per-pass", type=int, default=GROUPS * GROUP_SIZE, help="rows of one forward pass")

    options = parse(__doc__ or "", add)
    if options.half:
        print(json.dumps({"ours": ours, "theirs": theirs}[options.half](options.settings)))
        return
    results: dict[str, Any] = {}
    for vocabulary in options.vocabularies:
        with tempfile.TemporaryDirectory() as folder:
            weights = save_model(Path(folder), vocabulary)
            settings = {
                "folder": folder,
                "vocabulary": vocabulary,
                "rows_per_pass": options.rows_per_pass,
                "kl": options.kl,
                "steps": options.steps,
                "clock": options.clock,
                "seeds": task_seeds(options.steps, GROUPS),
                "trl_checkpointing": options.trl_checkpointing,
            }
            pairs = run_pairs(__file__, options.trl_python, settings, options.pairs, options.threads)
        check_equal(pairs, GROUPS * GROUP_SIZE * RESPONSE_TOKENS)
        results[str(vocabulary)] = {name: compare(pairs, value) for name, value in MEASURES.items()}
        print_table(f"vocabulary {vocabulary:,}, {weights / 1e6:.1f}M weights", results[str(vocabulary)])
    if options.json:
        settled = {name: getattr(options, name) for name in ("kl", "threads", "clock", "pairs", "rows_per_pass")}
        print(json.dumps({**settled, "results": results}))


if __name__ == "__main__":
    main()
