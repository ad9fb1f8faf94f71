"""Rows to tensors: padding, masks, means of turns, and mini-batches that cut no segment."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from arl_lightning.datamodules import collation
from arl_lightning.types import Row, Scores, TokenBatch, TrajectoryBatch

PAD = 9


def row(turn_of_token: Sequence[int], first_id: int = 0) -> Row:
    """A row whose tokens count up from `first_id`; -1 marks prompt tokens, and each turn is a segment."""
    turns = tuple(turn_of_token)
    return Row(
        token_ids=tuple(range(first_id, first_id + len(turns))),
        action_mask=tuple(turn >= 0 for turn in turns),
        behavior_logprobs=tuple(-0.5 if turn >= 0 else 0.0 for turn in turns),
        turn_of_token=turns,
        segment_of_token=turns,
    )


ROWS = [row([-1, 0, 0, -1, 1], first_id=10), row([-1, 2, 2], first_id=20)]


def scores(shape: Sequence[int]) -> Scores:
    ones_NT = torch.ones(*shape)
    return Scores(-1 * ones_NT, -2 * ones_NT, 3 * ones_NT, 0 * ones_NT)


def whole(rows: Sequence[Row], turn_advantages: Sequence[float]) -> TrajectoryBatch:
    batch = collation.collate(rows, PAD, temperature=1.0)
    turn_of_NT = collation.pad([row.turn_of_token for row in rows], -1, torch.int64)
    given = scores(batch.input_ids_NT.shape)
    return collation.trajectory_batch(batch, rows, given, turn_of_NT, turn_advantages, policy_version=7)


def single_turn_rows(count: int) -> list[Row]:
    """Row i is known by its first token, 10 i."""
    return [row([-1, i], first_id=10 * i) for i in range(count)]


def first_ids(batches: Sequence[TokenBatch]) -> list[list[int]]:
    return [batch.input_ids_NT[:, 0].tolist() if len(batch) else [] for batch in batches]


def test_rows_are_padded_on_the_right_and_padding_is_never_an_action() -> None:
    batch = collation.collate(ROWS, PAD, temperature=0.7)
    assert batch.input_ids_NT.tolist() == [[10, 11, 12, 13, 14], [20, 21, 22, PAD, PAD]]
    assert batch.lengths_N.tolist() == [5, 3]
    assert batch.action_mask_NT.int().tolist() == [[0, 1, 1, 0, 1], [0, 1, 1, 0, 0]]
    assert batch.segment_ids_NT.tolist() == [[-1, 0, 0, -1, 1], [-1, 2, 2, -1, -1]]
    assert batch.temperature == 0.7


def test_an_advantage_stands_on_exactly_the_tokens_of_its_turn() -> None:
    batch = whole(ROWS, turn_advantages=[0.5, -1.5, 2.5])
    assert batch.advantages_NT.tolist() == [[0.0, 0.5, 0.5, 0.0, -1.5], [0.0, 2.5, 2.5, 0.0, 0.0]]


def test_turns_without_a_row_shift_no_advantage() -> None:
    batch = whole([row([-1, 1]), row([-1, 3])], turn_advantages=[10.0, 11.0, 12.0, 13.0])  # 0 and 2 left no row
    assert batch.advantages_NT.tolist() == [[0.0, 11.0], [0.0, 13.0]]


def test_a_trajectory_batch_carries_samplers_scores_and_version() -> None:
    batch = whole(ROWS, turn_advantages=[0.0, 0.0, 0.0])
    assert batch.behavior_logprobs_NT.tolist() == [[0.0, -0.5, -0.5, 0.0, -0.5], [0.0, -0.5, -0.5, 0.0, 0.0]]
    assert batch.old_logprobs_NT.tolist() == [[-1.0] * 5] * 2
    assert batch.ref_logprobs_NT.tolist() == [[-2.0] * 5] * 2
    assert batch.policy_version == 7


def test_a_turns_mean_is_over_its_own_tokens_only() -> None:
    values_NT = torch.tensor([[99.0, 1.0, 3.0, 99.0, 5.0], [99.0, 2.0, 2.5, 99.0, 99.0]])
    # (1 + 3) / 2, 5 / 1, (2 + 2.5) / 2; turn 3 has no tokens
    turn_of_NT = collation.pad([row.turn_of_token for row in ROWS], -1, torch.int64)
    assert collation.turn_means(values_NT, turn_of_NT, turns=4) == [2.0, 5.0, 2.25, 0.0]


@pytest.mark.parametrize(("count", "sizes"), [(1, [7]), (3, [2, 2, 3]), (7, [1] * 7), (20, [0] * 13 + [1] * 7)])
def test_minibatches_partition_the_rows_nearly_evenly(count: int, sizes: list[int]) -> None:
    rows = single_turn_rows(7)
    batches = collation.minibatches(whole(rows, [0.0] * 7), rows, count, seed=3)
    assert sorted(len(batch) for batch in batches) == sizes
    assert sorted(i for ids in first_ids(batches) for i in ids) == [0, 10, 20, 30, 40, 50, 60]


def test_rows_keep_their_own_advantages_when_they_are_shuffled() -> None:
    rows = single_turn_rows(7)
    batches = collation.minibatches(whole(rows, [float(i) for i in range(7)]), rows, 3, seed=3)
    found = [pair for b in batches for pair in zip(b.input_ids_NT[:, 0].tolist(), b.advantages_NT[:, 1], strict=True)]
    assert sorted(found) == [(10 * i, float(i)) for i in range(7)]


def test_the_seed_decides_the_order() -> None:
    rows = single_turn_rows(20)
    orders = [first_ids(collation.minibatches(whole(rows, [0.0] * 20), rows, 2, seed)) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != [list(range(0, 100, 10)), list(range(100, 200, 10))]  # and it is a shuffle


def test_a_minibatch_is_as_wide_as_its_own_longest_row() -> None:
    rows = [row([-1, 0]), row([-1, 1, 1, 1])]
    widths = sorted(batch.input_ids_NT.shape[1] for batch in collation.minibatches(whole(rows, [0.0, 0.0]), rows, 2, 0))
    assert widths == [2, 4]


def test_the_segment_of_a_whole_episode_covers_its_action_tokens_and_leaves_its_turns() -> None:
    first, second = collation.by_episode(ROWS, episode=4)
    assert first.segment_of_token == (-1, 4, 4, -1, 4)
    assert second.segment_of_token == (-1, 4, 4)
    assert (first.turn_of_token, second.turn_of_token) == (ROWS[0].turn_of_token, ROWS[1].turn_of_token)


def test_a_turn_that_is_left_out_stays_as_context_and_a_row_of_such_turns_goes() -> None:
    [first] = collation.without_turns(ROWS, {0, 2})
    assert first.token_ids == ROWS[0].token_ids
    assert first.action_mask == (False, False, False, False, True)
    assert first.behavior_logprobs == (0.0, 0.0, 0.0, 0.0, -0.5)
    assert first.turn_of_token == first.segment_of_token == (-1, -1, -1, -1, 1)
    assert collation.without_turns(ROWS, {7}) == ROWS


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_one_segment_stay_neighbours_in_one_minibatch(seed: int) -> None:
    # window context with sequence=episode: five episodes of three one-turn rows each; rows of episode e start with 30 e
    turns = single_turn_rows(15)
    rows = [row for e in range(5) for row in collation.by_episode(turns[3 * e : 3 * e + 3], e)]
    batches = collation.minibatches(whole(rows, [0.0] * 15), rows, 4, seed)
    assert sorted(len(batch) for batch in batches) == [3, 3, 3, 6]  # five episodes on four mini-batches
    for ids in first_ids(batches):
        for start in range(0, len(ids), 3):
            assert ids[start] % 30 == 0
            assert ids[start : start + 3] == [ids[start], ids[start] + 10, ids[start] + 20]


def test_an_empty_rollout_is_empty_batches_of_the_same_dtypes() -> None:
    full, empty = whole(ROWS, [0.0] * 3), whole([], [])
    assert collation.turn_means(torch.zeros(0, 0), collation.pad([], -1, torch.int64), turns=0) == []
    batches = collation.minibatches(empty, [], 3, seed=0)
    assert [len(batch) for batch in batches] == [0, 0, 0]
    batch = batches[0]
    for name, value in vars(full).items():
        if isinstance(value, Tensor):
            assert getattr(batch, name).dtype == value.dtype, name
