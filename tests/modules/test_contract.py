"""Every shipped part keeps its contract, and a part that breaks one law is refused in that law's words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from arl_lightning.callbacks.difficulty_window import DifficultyWindow
from arl_lightning.callbacks.dynamic_filtering import DynamicFiltering
from arl_lightning.callbacks.usable_episodes import UsableEpisodes
from arl_lightning.modules.aggregations import SequenceMean, SequenceSum, TokenMean
from arl_lightning.modules.estimators import EMPG, GiGPO, GroupNormalized, LeaveOneOut
from arl_lightning.modules.masks import SequenceMask
from arl_lightning.modules.regularizers import ReferenceKL
from arl_lightning.modules.surrogates import ClippedWeight, SequenceClip, SoftGate, TokenClip
from arl_lightning.protocols import AdvantageEstimator, Aggregation, GroupGate, KLRegularizer, SegmentMask, Surrogate
from arl_lightning.testing import (
    ContractError,
    check_aggregation,
    check_estimator,
    check_gate,
    check_kl,
    check_segment_mask,
    check_surrogate,
)
from arl_lightning.types import Advantages, EpisodeGroup, GateDecision, StepTotals, TokenLoss


def assert_refused(law: str, check: Callable[..., None], part: object, **options: Any) -> None:
    with pytest.raises(ContractError, match=law) as caught:
        check(lambda: part, **options)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert sentence[0].isupper()


# surrogates


@pytest.mark.parametrize(
    "surrogate",
    [
        TokenClip(),
        TokenClip(0, 0),
        TokenClip(dual=3.0),
        SequenceClip(),
        SequenceClip(0, 0),
        ClippedWeight(),
        SoftGate(),
    ],
    ids=lambda surrogate: type(surrogate).__name__,
)
def test_shipped_surrogates_keep_the_contract(surrogate: Surrogate) -> None:
    check_surrogate(lambda: surrogate)


class Asked(NamedTuple):
    """What a surrogate or a mask is asked."""

    new_NT: Tensor
    old_NT: Tensor
    advantages_NT: Tensor
    acts_NT: Tensor


class Weighted:
    """−A·w, then changed."""

    def __init__(self, change: Callable[[Tensor, Asked], Tensor] = lambda loss_NT, asked: loss_NT) -> None:
        self.change = change

    def compute(
        self, logprobs_NT: Tensor, old_logprobs_NT: Tensor, advantages_NT: Tensor, segment_ids_NT: Tensor
    ) -> TokenLoss:
        asked = Asked(logprobs_NT, old_logprobs_NT, advantages_NT, segment_ids_NT >= 0)
        loss_NT = (-advantages_NT * (logprobs_NT - old_logprobs_NT).exp()).masked_fill(~asked.acts_NT, 0)
        return TokenLoss(self.change(loss_NT, asked), torch.zeros_like(asked.acts_NT))


def test_an_unlimited_surrogate_keeps_the_contract() -> None:
    check_surrogate(Weighted)


SURROGATE_FAULTS: list[tuple[str, Callable[[Tensor, Asked], Tensor]]] = [
    ("must have the shape", lambda loss_NT, asked: loss_NT.mean(dim=1)),
    ("must be float32, not torch.bfloat16", lambda loss_NT, asked: loss_NT.bfloat16()),
    ("must carry a gradient", lambda loss_NT, asked: loss_NT.detach()),
    ("loss must be 0 off the action mask", lambda loss_NT, asked: loss_NT + ~asked.acts_NT),
    (
        "Log-probs off the action mask must have zero gradient",
        lambda loss_NT, asked: loss_NT + asked.acts_NT * (asked.new_NT - asked.new_NT.detach()).sum(),
    ),
    # −A·w²/2 has the right gradient at w = 1, but exp(2 · 50) is beyond float32
    ("loss must be finite", lambda loss_NT, asked: loss_NT * (asked.new_NT - asked.old_NT).exp() / 2),
    # the slope of √|l| at l = 0
    (
        "gradient must be finite",
        lambda loss_NT, asked: (
            loss_NT + 0 * (asked.new_NT - asked.old_NT).masked_fill(~asked.acts_NT, 1).abs().sqrt() * asked.acts_NT
        ),
    ),
    ("gradient must be that of −A·log π", lambda loss_NT, asked: 2 * loss_NT),
    ("Padding must not change", lambda loss_NT, asked: loss_NT + loss_NT.shape[1] * asked.acts_NT),
    ("must not depend on other segments", lambda loss_NT, asked: loss_NT - asked.acts_NT * loss_NT.detach().sum()),
]


@pytest.mark.parametrize(("law", "change"), SURROGATE_FAULTS, ids=[law for law, _ in SURROGATE_FAULTS])
def test_a_surrogate_that_breaks_a_law_is_refused(law: str, change: Callable[[Tensor, Asked], Tensor]) -> None:
    assert_refused(law, check_surrogate, Weighted(change))


def test_where_a_surrogate_clips_is_bool() -> None:
    class Counting(Weighted):
        def compute(self, *args: Tensor, **kwargs: Tensor) -> TokenLoss:
            found = super().compute(*args, **kwargs)
            return TokenLoss(found.loss_NT, found.clipped_NT.float())

    assert_refused("dtype of clipped_NT must be bool, not torch.float32", check_surrogate, Counting())


# masks


@pytest.mark.parametrize("delta", [0.0, 3e-3, 0.223, math.inf])
def test_the_shipped_mask_keeps_the_contract(delta: float) -> None:
    check_segment_mask(lambda: SequenceMask(delta))


class Keeping:
    """All action tokens, then changed."""

    def __init__(self, change: Callable[[Asked], Tensor]) -> None:
        self.change = change

    def keep(
        self, logprobs_NT: Tensor, old_logprobs_NT: Tensor, advantages_NT: Tensor, segment_ids_NT: Tensor
    ) -> Tensor:
        return self.change(Asked(logprobs_NT, old_logprobs_NT, advantages_NT, segment_ids_NT >= 0))


def test_a_mask_that_keeps_all_keeps_the_contract() -> None:
    mask: SegmentMask = Keeping(lambda asked: asked.acts_NT)
    check_segment_mask(lambda: mask)


MASK_FAULTS: list[tuple[str, Callable[[Asked], Tensor]]] = [
    ("must be bool of the shape", lambda asked: asked.acts_NT.float()),
    ("must be bool of the shape", lambda asked: asked.acts_NT.any(dim=1)),
    ("never be True off the action mask", lambda asked: torch.ones_like(asked.acts_NT)),
    ("has not moved all must be kept", lambda asked: asked.acts_NT & (asked.advantages_NT >= 0)),
    (
        "kept or dropped as a whole",
        lambda asked: asked.acts_NT & ((asked.advantages_NT >= 0) | (asked.old_NT - asked.new_NT <= 3e-3)),
    ),
]


@pytest.mark.parametrize(("law", "change"), MASK_FAULTS)
def test_a_mask_that_breaks_a_law_is_refused(law: str, change: Callable[[Asked], Tensor]) -> None:
    assert_refused(law, check_segment_mask, Keeping(change))


# aggregations


@pytest.mark.parametrize("aggregation", [TokenMean(), SequenceMean(), SequenceSum(512)])
def test_shipped_aggregations_keep_the_contract(aggregation: Aggregation) -> None:
    check_aggregation(lambda: aggregation)


class Reducing:
    """What a function makes of the losses, 0 where they are not kept, of the mask, and of the step's tokens."""

    def __init__(self, reduce: Callable[[Tensor, Tensor, int], Tensor]) -> None:
        self.reduce = reduce

    def compute(self, loss_NT: Tensor, mask_NT: Tensor, segment_ids_NT: Tensor, totals: StepTotals) -> Tensor:
        return self.reduce(loss_NT.masked_fill(~mask_NT, 0), mask_NT, totals.tokens)


class Summing:
    """The mask is forgotten."""

    def compute(self, loss_NT: Tensor, mask_NT: Tensor, segment_ids_NT: Tensor, totals: StepTotals) -> Tensor:
        return loss_NT.sum() / max(totals.tokens, 1)


def token_mean(kept_NT: Tensor, tokens: int) -> Tensor:
    return kept_NT.sum() / max(tokens, 1)


def without_graph_where(lost: bool, kept_NT: Tensor, tokens: int) -> Tensor:
    return torch.zeros(()) if lost else token_mean(kept_NT, tokens)


AGGREGATION_FAULTS: list[tuple[str, Aggregation]] = [
    ("must be one number, not of shape", Reducing(lambda kept_NT, mask_NT, tokens: kept_NT.sum(dim=1) / tokens)),
    ("Tokens off the mask must count for nothing", Summing()),
    (
        "order of rows must not matter",
        Reducing(lambda kept_NT, mask_NT, tokens: token_mean(torch.arange(4.0)[: len(kept_NT)] @ kept_NT, tokens)),
    ),
    ("Padding must not matter", Reducing(lambda kept_NT, mask_NT, tokens: kept_NT.mean())),
    (
        "shares of any split into micro-batches must add up",
        Reducing(lambda kept_NT, mask_NT, tokens: kept_NT.sum() / mask_NT.sum().clamp(min=1)),
    ),
    ("must be linear in the loss", Reducing(lambda kept_NT, mask_NT, tokens: token_mean(kept_NT.square(), tokens))),
    ("empty mask must give exactly 0, not nan", Reducing(lambda kept_NT, mask_NT, tokens: kept_NT.sum() / tokens)),
    (
        "empty mask must give a 0 that is part of the graph",
        Reducing(lambda kept_NT, mask_NT, tokens: without_graph_where(tokens == 0, kept_NT, tokens)),
    ),
    (
        "empty micro-batch must give a 0 that is part of the graph",
        Reducing(
            lambda kept_NT, mask_NT, tokens: without_graph_where(tokens > 0 and not mask_NT.any(), kept_NT, tokens)
        ),
    ),
]


@pytest.mark.parametrize(("law", "aggregation"), AGGREGATION_FAULTS, ids=[law for law, _ in AGGREGATION_FAULTS])
def test_an_aggregation_that_breaks_a_law_is_refused(law: str, aggregation: Aggregation) -> None:
    assert_refused(law, check_aggregation, aggregation)


def test_an_aggregation_of_nothing_has_no_gradient() -> None:
    class Pushing:
        def compute(self, loss_NT: Tensor, mask_NT: Tensor, segment_ids_NT: Tensor, totals: StepTotals) -> Tensor:
            pushed_NT = loss_NT if mask_NT.any() else loss_NT - loss_NT.detach()
            return token_mean(pushed_NT.masked_fill(~mask_NT & mask_NT.any(), 0), totals.tokens)

    assert_refused("empty mask must have zero gradient", check_aggregation, Pushing())


# divergences


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_shipped_divergences_keep_the_contract(estimator: Any) -> None:
    check_kl(lambda: ReferenceKL(0.01, estimator))


def test_k1_keeps_the_contract_of_an_estimate_but_does_not_pull() -> None:
    check_kl(lambda: ReferenceKL(0.01, "k1"), pulls=False)
    assert_refused("must pull to the reference 30 nats below", check_kl, ReferenceKL(0.01, "k1"))


class Diverging:
    """What a function makes of d = log π_ref − log π."""

    def __init__(self, estimate: Callable[[Tensor], Tensor], coefficient: float = 0.01) -> None:
        self.estimate = estimate
        self._coefficient = coefficient

    @property
    def coefficient(self) -> float:
        return self._coefficient

    def compute(self, logprobs_NT: Tensor, ref_logprobs_NT: Tensor) -> Tensor:
        return self.estimate(ref_logprobs_NT - logprobs_NT)


KL_FAULTS: list[tuple[str, KLRegularizer]] = [
    ("coefficient must be at least 0 and finite, not -0.1", Diverging(torch.square, coefficient=-0.1)),
    ("must be float32 of the shape", Diverging(torch.sum)),
    ("must be 0 where policy and reference agree", Diverging(torch.exp)),
    ("must carry a gradient", Diverging(lambda d_NT: d_NT.detach().square())),
    ("divergence must be finite 30 nats below", Diverging(lambda d_NT: (3 * d_NT).expm1() - 3 * d_NT)),  # exp(90)
    (
        "gradient must be finite 30 nats below",  # where() multiplies the overflow of the branch not taken by 0
        Diverging(lambda d_NT: torch.where(d_NT > 10, d_NT, (3 * d_NT).expm1() - 3 * d_NT)),
    ),
    ("must pull to the reference 30 nats below", Diverging(lambda d_NT: (d_NT.expm1() - d_NT).clamp(max=10))),
    ("must pull to the reference 1 nats above", Diverging(lambda d_NT: d_NT.relu().square())),
]


@pytest.mark.parametrize(("law", "kl"), KL_FAULTS, ids=[law for law, _ in KL_FAULTS])
def test_a_divergence_that_breaks_a_law_is_refused(law: str, kl: KLRegularizer) -> None:
    assert_refused(law, check_kl, kl)


# estimators


@pytest.mark.parametrize(
    "estimator",
    [
        GroupNormalized(),
        GroupNormalized(std_floor=0.0, clip=None),
        GroupNormalized(scale="none"),
        GroupNormalized(over="turns"),
        LeaveOneOut(),
        GiGPO(),
        GiGPO(scale="none"),
    ],
)
def test_shipped_estimators_keep_the_contract(estimator: AdvantageEstimator) -> None:
    check_estimator(lambda: estimator)


def test_empg_keeps_the_contract_of_an_estimator_that_is_centred_over_the_batch() -> None:
    check_estimator(EMPG, centred=False)
    assert_refused("members are alike must have exactly 0", check_estimator, EMPG())


class Estimating:
    """GRPO's advantage, of each member changed by a function of its value, the group, its number, and the episode."""

    def __init__(self, change: Callable[[float, EpisodeGroup, int, bool], float]) -> None:
        self.change = change

    def estimate(self, groups: Sequence[EpisodeGroup], entropies_PGK: Advantages) -> Advantages:
        found_PGK = GroupNormalized().estimate(groups, entropies_PGK)
        return [
            [
                [self.change(value, group, p, episode.usable) for value in found_K]
                for found_K, episode in zip(found_GK, group.episodes, strict=True)
            ]
            for p, (group, found_GK) in enumerate(zip(groups, found_PGK, strict=True))
        ]


class OneAnEpisode:
    def estimate(self, groups: Sequence[EpisodeGroup], entropies_PGK: Advantages) -> Advantages:
        return [[[0.0] for _ in group.episodes] for group in groups]


ESTIMATOR_FAULTS: list[tuple[str, AdvantageEstimator]] = [
    ("must be one advantage a turn", OneAnEpisode()),
    (
        "Advantages must be finite",
        Estimating(lambda value, group, p, usable: value - sum(e.training_return for e in group.episodes)),
    ),
    ("not usable must have advantage 0", Estimating(lambda value, group, p, usable: value if usable else -1.0)),
    ("order of groups must not change", Estimating(lambda value, group, p, usable: value * (p + 1))),
    (
        "not usable must not change the advantages of others",
        Estimating(lambda value, group, p, usable: value / len(group.episodes)),
    ),
    ("members are alike must have exactly 0", Estimating(lambda value, group, p, usable: value + 1e-9 * usable)),
]


@pytest.mark.parametrize(("law", "estimator"), ESTIMATOR_FAULTS, ids=[law for law, _ in ESTIMATOR_FAULTS])
def test_an_estimator_that_breaks_a_law_is_refused(law: str, estimator: AdvantageEstimator) -> None:
    assert_refused(law, check_estimator, estimator)


# gates


@pytest.mark.parametrize("by", ["success", "score", "return", "advantage"])
def test_the_shipped_filter_keeps_the_contract(by: Any) -> None:
    check_gate(lambda: DynamicFiltering(by=by, cold_start_epochs=3))


@pytest.mark.parametrize(
    "make",
    [
        DifficultyWindow,
        lambda: DifficultyWindow(0.0, 1.0, final_low=0.2, final_high=0.6, moves_over_epochs=7, cold_start_epochs=2),
        UsableEpisodes,
        lambda: UsableEpisodes(0.0, 0.0, count_truncated=True, max_attempts=1, exhausted="skip"),
    ],
)
def test_the_further_gates_keep_the_contract(make: Callable[[], GroupGate]) -> None:
    check_gate(make)


class Open:
    """A gate that keeps every group."""

    def __init__(self, max_attempts: int = 1, exhausted: str = "fill") -> None:
        self.max_attempts = max_attempts
        self.exhausted = exhausted

    def admit(self, groups: Sequence[EpisodeGroup], epoch: int) -> Sequence[GateDecision]:
        return [GateDecision(keep=True) for _ in groups]


class Deciding(Open):
    """A gate whose decisions a function makes."""

    def __init__(self, decide: Callable[[Any], Any]) -> None:
        super().__init__()
        self.decide = decide

    def admit(self, groups: Sequence[EpisodeGroup], epoch: int) -> Sequence[GateDecision]:
        decisions: Sequence[GateDecision] = self.decide(groups)
        return decisions


class Silent:
    max_attempts = 1

    def admit(self, groups: Sequence[EpisodeGroup], epoch: int) -> Sequence[GateDecision]:
        return [GateDecision(keep=True) for _ in groups]


calls = itertools.count()


def emptied(groups: list[EpisodeGroup]) -> list[GateDecision]:
    return [GateDecision(keep=bool(groups.pop().episodes)) for _ in range(len(groups))]


GATE_FAULTS: list[tuple[str, object]] = [
    ("must offer 'exhausted'", Silent()),
    ("max_attempts must be an int of at least 1, not 0", Open(max_attempts=0)),
    ("max_attempts must be an int of at least 1, not inf", Open(max_attempts=math.inf)),  # type: ignore[arg-type]
    ("exhausted must be one of fill, shrink, skip, not 'refill'", Open(exhausted="refill")),
    ("must not change the groups", Deciding(emptied)),
    ("One decision a group must be given: 6, not 1", Deciding(lambda groups: [GateDecision(keep=True)])),
    ("must be a GateDecision", Deciding(lambda groups: [True for _ in groups])),
    ("must be a GateDecision whose `keep` is a bool", Deciding(lambda groups: [GateDecision(1) for _ in groups])),  # type: ignore[arg-type]
    ("must decide the same", Deciding(lambda groups: [GateDecision(next(calls) % 5 == 0) for _ in groups])),
    ("No groups must get no decisions", Deciding(lambda groups: [GateDecision(True) for _ in groups or [None]])),
]


@pytest.mark.parametrize(("law", "gate"), GATE_FAULTS, ids=[law for law, _ in GATE_FAULTS])
def test_a_gate_that_breaks_a_law_is_refused(law: str, gate: object) -> None:
    assert_refused(law, check_gate, gate)


def test_a_gate_may_remember_what_it_was_asked() -> None:
    class Alternating(Open):
        asked = 0

        def admit(self, groups: Sequence[EpisodeGroup], epoch: int) -> Sequence[GateDecision]:
            self.asked += 1
            return [GateDecision(keep=self.asked % 2 == 0) for _ in groups]

    check_gate(Alternating)
