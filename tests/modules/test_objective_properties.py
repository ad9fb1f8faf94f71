"""Laws of the whole objective, for every combination of shipped parts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple, Self

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from arl_lightning.functional.segments import count
from arl_lightning.modules.aggregations import SequenceMean, SequenceSum, TokenMean
from arl_lightning.modules.estimators import GiGPO, GroupNormalized
from arl_lightning.modules.masks import SequenceMask
from arl_lightning.modules.objective import Objective
from arl_lightning.modules.regularizers import EntropyBonus, ReferenceKL
from arl_lightning.modules.sampler_corrections import TruncatedImportance
from arl_lightning.modules.surrogates import ClippedWeight, SequenceClip, SoftGate, TokenClip
from arl_lightning.protocols import (
    AdvantageEstimator,
    Aggregation,
    KLRegularizer,
    SamplerCorrection,
    SegmentMask,
    Surrogate,
)
from arl_lightning.testing import scripted_episode
from arl_lightning.types import Episode, EpisodeGroup, StepTotals, TrajectoryBatch

LOW = 0.05
SURROGATES: list[Surrogate] = [TokenClip(), TokenClip(dual=1.5), SequenceClip(LOW, LOW), ClippedWeight(), SoftGate()]
AGGREGATIONS: list[Aggregation] = [TokenMean(), SequenceMean(), SequenceSum(length=7)]
MASKS: list[SegmentMask | None] = [None, SequenceMask(0.02)]
KLS: list[KLRegularizer | None] = [None, *(ReferenceKL(0.3, name) for name in ("k1", "k2", "k3"))]
ENTROPIES = [None, EntropyBonus(0.1)]
CORRECTIONS: list[SamplerCorrection | None] = [None, TruncatedImportance(1.05)]
OBJECTIVES = [
    Objective(
        surrogate=surrogate,
        aggregation=aggregation,
        advantage=GiGPO(),
        mask=mask,
        kl=kl,
        entropy=entropy,
        sampler_correction=correction,
    )
    for surrogate, aggregation, mask, kl, entropy, correction in product(
        SURROGATES, AGGREGATIONS, MASKS, KLS, ENTROPIES, CORRECTIONS
    )
]
GSPO = Objective(surrogate=SequenceClip(LOW, LOW), aggregation=SequenceMean(), advantage=GroupNormalized())
SAMPO = replace(GSPO, advantage=GiGPO(), mask=SequenceMask(0.02))

PAIRS, WIDTH, JUNK = 3, 5, 4.0
few_examples = settings(max_examples=2, deadline=None, derandomize=True)
more_examples = settings(max_examples=30, deadline=None, derandomize=True)
seeds = st.integers(0, 10_000)


class Pass(NamedTuple):
    """Rows and what the present policy says of them; log-probs and entropies carry gradient, in float64."""

    batch: TrajectoryBatch
    logprobs_NT: Tensor
    entropies_NT: Tensor

    def take(self, rows: Sequence[int]) -> Self:
        """The named rows, narrowed to the longest of them."""
        batch = self.batch.take(rows)
        width = batch.input_ids_NT.shape[1]
        return self._replace(
            batch=batch, logprobs_NT=self.logprobs_NT[rows, :width], entropies_NT=self.entropies_NT[rows, :width]
        )


def random_pass(seed: int, drift_nats: float = 0.3, rows: int = 2 * PAIRS) -> Pass:
    """Rows in neighbouring pairs: a segment of each row's own, and one that lies in both rows of the pair.

    Rows differ in length, what is no action holds junk, and advantages differ within a segment.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(rows, WIDTH, generator=generator)

    row_N1 = torch.arange(rows)[:, None]
    ids_NT = torch.where(torch.arange(WIDTH) < 3, row_N1, rows + row_N1 // 2)
    lengths_N = torch.randint(1, WIDTH + 1, (rows,), generator=generator)
    acts_NT = (torch.arange(WIDTH) < lengths_N[:, None]) & (normal() < 0.8)
    old_NT = -normal().abs()
    batch = TrajectoryBatch(
        input_ids_NT=torch.zeros(rows, WIDTH, dtype=torch.int64),
        lengths_N=lengths_N,
        action_mask_NT=acts_NT,
        segment_ids_NT=ids_NT.masked_fill(~acts_NT, -1),
        behavior_logprobs_NT=(old_NT + 0.1 * normal()).masked_fill(~acts_NT, JUNK),
        old_logprobs_NT=old_NT.masked_fill(~acts_NT, JUNK),
        ref_logprobs_NT=(old_NT + normal()).masked_fill(~acts_NT, -JUNK),
        advantages_NT=normal().masked_fill(~acts_NT, JUNK),
        policy_version=0,
    )
    new_NT = (old_NT + drift_nats * normal()).masked_fill(~acts_NT, 2 * JUNK)
    return Pass(batch, new_NT.double().requires_grad_(), normal().double().requires_grad_())


def totals(objective: Objective, whole: Pass) -> tuple[StepTotals, StepTotals]:
    keep_NT = objective.keep(whole.logprobs_NT.detach(), whole.batch)
    ids_NT = whole.batch.segment_ids_NT
    return count(keep_NT, ids_NT), count(whole.batch.action_mask_NT, ids_NT)


def step(objective: Objective, leaves: Pass, parts: Sequence[Pass]) -> tuple[Tensor, Tensor, Tensor]:
    """Loss of a step made of `parts`, and its gradients in the log-probs and entropies of `leaves`."""
    kept, acted = (sum(found, StepTotals(0, 0)) for found in zip(*(totals(objective, p) for p in parts), strict=True))
    shares = [
        objective.compute(part.logprobs_NT, part.entropies_NT, part.batch, kept=kept, acted=acted)[0] for part in parts
    ]
    loss = torch.stack(shares).sum()
    inputs = [leaves.logprobs_NT, leaves.entropies_NT]
    by_logprob_NT, by_entropy_NT = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
    return loss.detach(), by_logprob_NT, by_entropy_NT


def assert_all_objectives_agree(whole: Pass, cut: Callable[[Pass], Sequence[Pass]]) -> None:
    for objective in OBJECTIVES:
        torch.testing.assert_close(step(objective, whole, cut(whole)), step(objective, whole, [whole]))


def gradient(objective: Objective, leaves: Pass, *parts: Pass) -> Tensor:
    return step(objective, leaves, parts or [leaves])[1]


def padded(one: Pass, right: int, below: int, value: float) -> Pass:
    """The same rows with `right` more columns and `below` more rows that hold no action."""

    def pad_NT(values_NT: Tensor, value: float = value) -> Tensor:
        return torch.nn.functional.pad(values_NT, (0, right, 0, below), value=value)

    batch = one.batch
    changed: dict[str, Any] = {
        name: pad_NT(getattr(batch, name))
        for name in ("behavior_logprobs_NT", "old_logprobs_NT", "ref_logprobs_NT", "advantages_NT", "input_ids_NT")
    }
    wide = replace(
        batch,
        **changed,
        lengths_N=torch.nn.functional.pad(batch.lengths_N + right, (0, below), value=1),
        action_mask_NT=pad_NT(batch.action_mask_NT, False),
        segment_ids_NT=pad_NT(batch.segment_ids_NT, -1),
    )
    return Pass(wide, pad_NT(one.logprobs_NT), pad_NT(one.entropies_NT))


@few_examples
@given(seed=seeds, pairs=st.integers(1, PAIRS - 1))
def test_any_split_between_segments_is_the_same_step(seed: int, pairs: int) -> None:
    def cut(whole: Pass) -> list[Pass]:
        return [whole.take(range(2 * pairs)), whole.take(range(2 * pairs, 2 * PAIRS))]

    assert_all_objectives_agree(random_pass(seed), cut)


@few_examples
@given(seed=seeds, order=st.permutations(range(2 * PAIRS)))
def test_order_of_rows_does_not_matter(seed: int, order: list[int]) -> None:
    assert_all_objectives_agree(random_pass(seed), lambda whole: [whole.take(order)])


@few_examples
@given(seed=seeds, right=st.integers(0, 3), below=st.integers(0, 2), value=st.sampled_from([0.0, -9.0, 9.0]))
def test_padding_does_not_matter(seed: int, right: int, below: int, value: float) -> None:
    assert_all_objectives_agree(random_pass(seed), lambda whole: [padded(whole, right, below, value)])


@more_examples
@given(seed=seeds, aggregation=st.sampled_from(AGGREGATIONS), mask=st.sampled_from(MASKS))
def test_on_policy_all_surrogates_and_masks_have_one_gradient(
    seed: int, aggregation: Aggregation, mask: SegmentMask | None
) -> None:
    whole = random_pass(seed, drift_nats=0.0)
    plain = replace(GSPO, surrogate=TokenClip(), aggregation=aggregation)
    for surrogate in SURROGATES:
        found_NT = gradient(replace(plain, surrogate=surrogate, mask=mask), whole)
        torch.testing.assert_close(found_NT, gradient(plain, whole))


def dropped(objective: Objective, whole: Pass) -> Tensor:
    return whole.batch.action_mask_NT & ~objective.keep(whole.logprobs_NT.detach(), whole.batch)


def held_by_the_lower_clip(objective: Objective, whole: Pass) -> Tensor:
    batch = whole.batch
    token_loss = objective.surrogate.compute(
        whole.logprobs_NT, batch.old_logprobs_NT, batch.advantages_NT, batch.segment_ids_NT
    )
    return token_loss.clipped_NT & (batch.advantages_NT < 0)


@more_examples
@given(seed=seeds, aggregation=st.sampled_from([TokenMean(), SequenceSum(length=7)]))
def test_mask_at_the_lower_clip_changes_only_the_denominator(seed: int, aggregation: Aggregation) -> None:
    whole = random_pass(seed)
    clipped = replace(GSPO, aggregation=aggregation)
    masked = replace(clipped, mask=SequenceMask(-math.log(1 - LOW)))
    assert dropped(masked, whole).equal(held_by_the_lower_clip(clipped, whole))
    kept, acted = totals(masked, whole)
    share = kept.tokens / acted.tokens if isinstance(aggregation, TokenMean) else kept.segments / acted.segments
    torch.testing.assert_close(share * gradient(masked, whole), gradient(clipped, whole))


def one_advantage_a_segment(one: Pass) -> Pass:
    """Advantages that are equal within a segment, as with turns for segments: then it stays or goes as a whole."""
    ids_NT = one.batch.segment_ids_NT
    return one._replace(batch=replace(one.batch, advantages_NT=torch.where(ids_NT % 2 == 1, -1.0, 0.5)))


@more_examples
@given(seed=seeds)
def test_mask_at_the_lower_clip_changes_only_the_number_of_whole_segments(seed: int) -> None:
    whole = one_advantage_a_segment(random_pass(seed))
    masked = replace(GSPO, mask=SequenceMask(-math.log(1 - LOW)))
    assert dropped(masked, whole).equal(held_by_the_lower_clip(GSPO, whole))
    kept, acted = totals(masked, whole)
    share = kept.segments / acted.segments
    torch.testing.assert_close(share * gradient(masked, whole), gradient(GSPO, whole))


@more_examples
@given(seed=seeds)
def test_sampo_is_gspo_on_what_its_mask_leaves(seed: int) -> None:
    whole = one_advantage_a_segment(random_pass(seed))
    batch = whole.batch
    keep_NT = SAMPO.keep(whole.logprobs_NT.detach(), batch)
    left = replace(batch, action_mask_NT=keep_NT, segment_ids_NT=batch.segment_ids_NT.masked_fill(~keep_NT, -1))
    found_NT = gradient(SAMPO, whole)
    assert found_NT.equal(gradient(GSPO, whole, whole._replace(batch=left)))
    assert (found_NT[~keep_NT] == 0).all()


def test_sampo_on_policy_is_gspo_with_the_advantages_of_gigpo() -> None:
    group = EpisodeGroup(0, tuple(scripted_episode(rewards) for rewards in ((0.0, 1.0), (0.0, 0.0), (-0.1, 0.5))))
    entropies_PGK = [[[0.5, 0.5]] * 3]
    sampo_PGK = SAMPO.advantage.estimate([group], entropies_PGK)
    assert sampo_PGK == GiGPO().estimate([group], entropies_PGK)

    # one row a turn; six turns
    one = random_pass(0, drift_nats=0.0, rows=6)
    turns_N1 = torch.tensor(sampo_PGK).reshape(6, 1)
    acts_NT = one.batch.action_mask_NT
    ids_NT = torch.arange(6)[:, None].expand(6, WIDTH).masked_fill(~acts_NT, -1)
    played = one._replace(batch=replace(one.batch, advantages_NT=turns_N1 * acts_NT, segment_ids_NT=ids_NT))
    assert gradient(SAMPO, played).equal(gradient(GSPO, played))


@pytest.mark.parametrize("omega", [0.0, 1.0])
def test_gigpo_is_group_normalized_where_no_state_is_met_twice(omega: float) -> None:
    def wandering(member: int, rewards: Sequence[float]) -> Episode:
        episode = scripted_episode(rewards, member=member)
        return replace(
            episode, turns=tuple(replace(turn, state_key=(member, turn.state_key)) for turn in episode.turns)
        )

    members = [wandering(member, rewards) for member, rewards in enumerate([(0.0, 1.0), (0.2,), (0.0, -0.1, 0.5)])]
    group = EpisodeGroup(0, tuple(members))
    estimators: list[AdvantageEstimator] = [GiGPO(omega=omega), GroupNormalized()]
    found, expected = (estimator.estimate([group], [[[0.5, 0.5], [0.5], [0.5] * 3]]) for estimator in estimators)
    assert found == expected
