"""Environments that raise, hang, die, pay NaN or shout: the run goes on, and says how many episodes it lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from arl_lightning.cli import main

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome, SmallRun

FAULTY_ENVS = Path(__file__).parents[1] / "envs"


def test_ten_epochs_of_faulty_environments_finish_and_count_what_they_lost(
    small_run: SmallRun, runs: Path, outcome: Callable[[str], Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FAULTY_ENVS))
    task = "--data.task."
    options = [f"{task}env_id", "faulty:tests/Faulty-v0", f"{task}max_turns", "5"]
    options += [f"{task}env_options", "{fault_share: 0.05, length: 5}"]
    options += [f"{task}workers", "{processes: 2, step_timeout_s: 1.5}"]
    options += ["--data.max_error_share", "0.9", "--data.groups", "4", "--data.group_size", "4"]
    options += ["--trainer.max_epochs", "10", "--trainer.limit_val_batches", "0", "--callbacks.filtering", "null"]
    options += ["--callbacks.transcripts.groups", "4", "--callbacks.transcripts.members", "1"]
    options += ["--callbacks.transcripts.every_n_epochs", "1"]
    main(small_run("fit", "faulty", *options))
    ratios = [value for _, value in outcome("faulty").metrics["train/error_ratio"]]
    assert len(ratios) == 10
    assert all(value * 16 == int(value * 16) for value in ratios)  # of sixteen episodes each
    assert 0.05 < sum(ratios) / 10 < 0.5  # five steps at 0.05 each: 1 − 0.95⁵ = 0.23 expected of 160
    lines = (runs / "faulty" / "transcripts.jsonl").read_text().splitlines()
    episodes = [json.loads(line) for line in lines]
    assert len(episodes) == 40
    assert {episode["epoch"] for episode in episodes} == set(range(10))
    check_against_the_rule(episodes)


def check_against_the_rule(episodes: list[dict[str, object]]) -> None:
    """Every episode ended at its first planned fault, for the reason that was planned, and went on where none was."""
    from faulty import FaultyEnv  # type: ignore[import-not-found]

    reasons = {"raise": "planned", "hang": "did not answer", "exit": "exit code 3", "huge": "10000000 characters"}
    met = set()
    for episode in episodes:
        env = FaultyEnv(fault_share=0.05, length=5)
        env.reset(seed=episode["task_seed"])
        turns = episode["turns"]
        assert isinstance(turns, list)
        for turn in turns:
            env.steps += 1
            fault = env._by_chance()
            assert fault in (None, "nan")
            env.count += fault is None and turn["action"] == "up"
        env.steps += 1
        fault = env._by_chance() if episode["stop"] == "error" else None
        assert (fault is None) == (episode["error"] is None)
        if fault is not None:
            met.add(fault)
            assert reasons[fault] in str(episode["error"])
    assert met
