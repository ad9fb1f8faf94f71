"""What a run leaves to look at: the same after an interruption, and true of the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from arl_lightning.cli import main

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome, SmallRun

EVERY = ("--callbacks.transcripts.every_n_epochs", "1")
WHOLE = ("--callbacks.transcripts.groups", "4", "--callbacks.transcripts.members", "4")


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def whole(small_run: SmallRun, runs: Path) -> Path:
    """Three epochs whose every episode is kept."""
    main(small_run("fit", "records/whole", *EVERY, *WHOLE, "--trainer.max_epochs", "3"))
    return runs / "records/whole"


def test_the_kept_tokens_give_the_run_s_own_metrics(whole: Path, outcome: Callable[[str], Outcome]) -> None:
    metrics = outcome("records/whole").metrics
    for epoch in range(3):
        episodes = [e for e in lines(whole, "transcripts") if e["epoch"] == epoch and e["stage"] == "train"]
        assert len(episodes) == 16  # 4 groups of 4, filled or not
        updates = [turn["update"] for episode in episodes for turn in episode["turns"]]
        # of all mini-batches, weighted by tokens: mean(old − new), dropped, entropy
        for metric, tokens in {
            "train/approx_kl": [-value for update in updates for value in update["log_ratios"]],
            "train/mask/dropped": [1 - kept for update in updates for kept in update["kept"]],
            "train/entropy": [value for update in updates for value in update["entropies"]],
        }.items():
            assert metrics[metric][epoch][1] == pytest.approx(sum(tokens) / len(tokens), abs=2e-6), metric
        first = [value for update in updates if update["minibatch"] == 0 for value in update["log_ratios"]]
        assert max(map(abs, first)) < 1e-4
        assert {update["minibatch"] for update in updates} == {0, 1}
        for turn in (turn for episode in episodes for turn in episode["turns"]):
            assert len(turn["tokens"]) == len(turn["behavior_logprobs"]) == len(turn["update"]["kept"])
            assert "".join(turn["tokens"]).startswith(turn["response"])


def test_a_resumed_run_leaves_the_same_records(whole: Path, small_run: SmallRun, runs: Path) -> None:
    folder = "records/resumed"
    main(small_run("fit", folder, *EVERY, *WHOLE, "--trainer.max_epochs", "2"))
    main(small_run("fit", folder, *EVERY, *WHOLE, "--trainer.max_epochs", "3", "--ckpt_path", "last"))
    assert lines(runs / folder, "transcripts") == lines(whole, "transcripts")
    told = [(event["epoch"], event["kind"]) for event in lines(runs / folder, "events")]
    process = ("begin", "resume", "end")
    assert [event for event in told if event[1] in process] == [(0, "begin"), (2, "end"), (2, "resume"), (3, "end")]
    uninterrupted = [(event["epoch"], event["kind"]) for event in lines(whole, "events")]
    assert [e for e in told if e[1] not in process] == [e for e in uninterrupted if e[1] not in process]
    assert (2, "watch") in told  # hardly two in five answers of the small clone are valid
    main(["view", str(runs / folder)])
    assert "the run goes on from the end of epoch 1" in (runs / folder / "view.html").read_text(encoding="utf-8")


def test_tensorboard_has_curves_by_family_transcripts_events_and_frames(whole: Path) -> None:
    tags = EventAccumulator(str(whole)).Reload().Tags()
    families = {name.partition("/")[0] for name in tags["scalars"]}
    assert families == {"train", "val", "filter", "collapse", "time", "throughput", "memory", "epoch"}
    assert tags["images"] == ["frames/train/0", "frames/train/1"]
    texts = {"transcripts/train", "transcripts/val", "events/begin", "events/watch", "events/end"}
    assert {f"{name}/text_summary" for name in texts} <= set(tags["tensors"])


@pytest.mark.slow
def test_each_record_can_be_switched_off(small_run: SmallRun, runs: Path) -> None:
    off = [word for slot in ("events", "transcripts", "frames") for word in (f"--callbacks.{slot}", "null")]
    main(small_run("fit", "records/off", *off))
    assert not list((runs / "records/off").glob("*.jsonl"))
