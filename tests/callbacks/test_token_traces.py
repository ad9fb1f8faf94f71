"""Token traces: every token of a chosen episode is found again, however rows are cut, shuffled and alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from arl_lightning.callbacks.token_traces import TokenTraces
from arl_lightning.datamodules.conversation import Context, FullContext, WindowContext
from arl_lightning.datamodules.prompting import TaggedAction
from arl_lightning.datamodules.rollout_datamodule import RolloutDataModule
from arl_lightning.testing import ScriptedPolicy, attach, scripted_task
from arl_lightning.types import Advantages, Decoding, EpisodeGroup, PassRecord, Rollout, TrajectoryBatch

say = TaggedAction().write


class Witness:
    """Keeps the rollout."""

    def rollout_started(self, stage: str, epoch: int, episodes: int) -> None: ...

    def rollout_advanced(self, finished: int, succeeded: int, turns: int) -> None: ...

    def rollout_finished(self, rollout: Rollout) -> None:
        self.rollout = rollout


def numbered(groups: Sequence[EpisodeGroup], entropies_PGK: Advantages) -> Advantages:
    """100 · episode + turn, so that an advantage says whose it is."""
    sizes = [len(group.episodes) for group in groups]
    return [
        [[100.0 * (sum(sizes[:p]) + g) + k for k in range(len(e.turns))] for g, e in enumerate(group.episodes)]
        for p, group in enumerate(groups)
    ]


def played(context: Context, choose: Any, **knobs: Any) -> tuple[list[TrajectoryBatch], Rollout]:
    """Two groups of three episodes of at most four turns."""
    learn = knobs.pop("learn_from_invalid", True)
    task = replace(scripted_task(context, max_turns=4), learn_from_invalid=learn)
    data = RolloutDataModule(
        task=task, decoding=Decoding(max_new_tokens=8), groups=2, group_size=3, max_error_share=0.5, **knobs
    )
    witness = Witness()
    attach(data, ScriptedPolicy(choose, estimate=numbered), [witness])
    return list(data.train_dataloader()), witness.rollout


def record(batch: TrajectoryBatch) -> PassRecord:
    """A pass whose log-ratio is the token's id / 100, and whose entropy its place in the row."""
    ratios_NT = batch.input_ids_NT / 100
    places_NT = torch.arange(batch.input_ids_NT.shape[1]).expand(batch.input_ids_NT.shape).float()
    acts_NT = batch.action_mask_NT
    return PassRecord(batch, batch.old_logprobs_NT + ratios_NT, places_NT, acts_NT & (ratios_NT > 0.1), acts_NT)


def wander(prompt: str, seed: int) -> str:
    return say(["go", "wait", "win", "crash", "fly"][(seed + sum(map(ord, prompt))) % 5])


@pytest.mark.parametrize("sequence", ["turn", "episode"])
@pytest.mark.parametrize("context", [WindowContext(2), WindowContext(0), FullContext()])
@pytest.mark.parametrize("choose", [wander, [say("wait")], [say("fly")]])
@pytest.mark.parametrize("learn_from_invalid", [True, False])
def test_each_turn_that_is_learned_from_has_its_own_tokens_and_no_other_has_any(
    sequence: str, context: Context, choose: Any, learn_from_invalid: bool
) -> None:
    """Six times the same words, in whose rows only segments differ, and plays that break off and are left out."""
    batches, rollout = played(context, choose, sequence=sequence, minibatches=3, learn_from_invalid=learn_from_invalid)
    chosen = {0, 2, 4}
    traces = TokenTraces(rollout, chosen, sequence)
    for number, batch in enumerate(batches):
        traces.note(record(batch), number)
    episodes = rollout.episodes
    learned = {
        (n, k)
        for n in chosen
        for k, turn in enumerate(episodes[n].turns)
        if episodes[n].usable and (turn.valid or learn_from_invalid)
    }
    assert set(traces.found) == learned
    for (n, k), trace in traces.found.items():
        token_ids = episodes[n].turns[k].completion.token_ids
        assert trace.advantage == 100 * n + k
        assert trace.log_ratios == pytest.approx([token / 100 for token in token_ids], abs=1e-6)
        assert trace.clipped == tuple(token > 10 for token in token_ids)
        assert trace.kept == (True,) * len(token_ids)
        assert trace.entropies[-1] - trace.entropies[0] == len(token_ids) - 1  # neighbours in their row


def test_a_trace_says_in_which_minibatch_its_turn_was() -> None:
    batches, rollout = played(FullContext(), [say("wait")], minibatches=6)
    traces = TokenTraces(rollout, range(6), "turn")
    for number, batch in enumerate(batches):
        traces.note(record(batch), number)
    where = {batch.advantages_NT.max().item() // 100: number for number, batch in enumerate(batches)}
    assert {n: trace.minibatch for (n, _), trace in traces.found.items()} == where


def test_rows_that_are_not_of_the_rollout_are_a_fault_and_no_silent_mixture() -> None:
    batches, rollout = played(WindowContext(2), [say("wait")], minibatches=1)
    other = replace(batches[0], input_ids_NT=batches[0].input_ids_NT + 1)
    with pytest.raises(ValueError, match=r"segment \d has no turn with the tokens at"):
        TokenTraces(rollout, {0}, "turn").note(record(other), 0)


def test_an_empty_batch_leaves_no_trace() -> None:
    batches, rollout = played(WindowContext(2), [say("wait")], minibatches=1)
    traces = TokenTraces(rollout, {0}, "turn")
    traces.note(record(batches[0].take([])), 0)
    assert traces.found == {}
