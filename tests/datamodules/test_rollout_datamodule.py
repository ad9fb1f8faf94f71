"""One epoch of data: rows and advantages that fit, seeds that decide all, faults that stay out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
import torch
from lightning.pytorch import Trainer

from arl_lightning.callbacks.dynamic_filtering import DynamicFiltering
from arl_lightning.datamodules.conversation import Context, FullContext
from arl_lightning.datamodules.held_out import HeldOut
from arl_lightning.datamodules.prompting import TaggedAction
from arl_lightning.datamodules.rollout_datamodule import RolloutDataModule
from arl_lightning.functional.seeding import Stream, derive_seed
from arl_lightning.modules.agent_module import AgentModule
from arl_lightning.modules.aggregations import TokenMean
from arl_lightning.modules.estimators import EMPG, GiGPO, GroupNormalized
from arl_lightning.modules.objective import Objective
from arl_lightning.modules.surrogates import TokenClip
from arl_lightning.modules.tiny_model import TinyModel
from arl_lightning.protocols import AdvantageEstimator
from arl_lightning.testing import WORDS, ScriptedPolicy, attach, scripted_task
from arl_lightning.types import (
    Advantages,
    ArlError,
    Decoding,
    EpisodeGroup,
    Measure,
    Rollout,
    Scores,
    TokenBatch,
    TrajectoryBatch,
)

say = TaggedAction().write
HELD_OUT = HeldOut(tasks=5, env_options={}, decodings={"sampled": Decoding(max_new_tokens=8)}, portion=3)


@dataclass
class Witness:
    """A RolloutObserver that keeps what it is told of beginnings and ends."""

    started: list[tuple[str, int, int]] = field(default_factory=list)
    rollouts: list[Rollout] = field(default_factory=list)

    def rollout_started(self, stage: str, epoch: int, episodes: int) -> None:
        self.started.append((stage, epoch, episodes))

    def rollout_advanced(self, finished: int, succeeded: int, turns: int) -> None:
        pass

    def rollout_finished(self, rollout: Rollout) -> None:
        self.rollouts.append(rollout)


def module(**knobs: Any) -> RolloutDataModule:
    defaults: dict[str, Any] = {
        "task": scripted_task(),
        "decoding": Decoding(max_new_tokens=8),
        "groups": 2,
        "group_size": 3,
        "minibatches": 1,
        "env_options": {},
        "validation": HELD_OUT,
        "test": HELD_OUT,
    }
    return RolloutDataModule(**{**defaults, **knobs})


def epoch_of(
    data: RolloutDataModule, policy: ScriptedPolicy, *callbacks: object, epoch: int = 0
) -> tuple[list[TrajectoryBatch], Rollout]:
    witness = Witness()
    attach(data, policy, [witness, *callbacks], epoch)
    batches = list(data.train_dataloader())
    [rollout] = witness.rollouts
    return batches, rollout


def token_seed(group: int, member: int, turn: int, *, root: int = 0, epoch: int = 0, attempt: int = 0) -> int:
    return derive_seed(root, Stream.TRAIN_TOKEN, epoch, attempt, group, member, turn)


def scripted(
    plays: Mapping[tuple[int, int], Sequence[str]],
    otherwise: str = "lose",
    estimate: Callable[[Sequence[EpisodeGroup], Advantages], Advantages] | None = None,
) -> ScriptedPolicy:
    """Plays `plays[group, member]` in the first attempt of epoch 0, and `otherwise` everywhere else."""
    known = {token_seed(g, m, k): action for (g, m), actions in plays.items() for k, action in enumerate(actions)}
    return ScriptedPolicy(lambda prompt, seed: say(known.get(seed, otherwise)), estimate=estimate)


def wander(prompt: str, seed: int) -> str:
    return say(["go", "wait", "win", "lose", "cut"][(seed + sum(map(ord, prompt))) % 5])


def actions(rollout: Rollout) -> list[list[list[str]]]:
    return [[[turn.action for turn in e.turns] for e in group.episodes] for group in rollout.groups]


def test_the_loader_has_the_length_of_the_epochs_minibatches() -> None:
    data = module(minibatches=3)
    attach(data, ScriptedPolicy([say("lose")]))
    loader = data.train_dataloader()
    assert len(loader) == 3
    assert [len(batch) for batch in loader] == [2, 2, 2]  # 2 groups · 3 members · 1 turn


def numbered(groups: Sequence[EpisodeGroup], entropies_PGK: Advantages) -> Advantages:
    return [
        [[100.0 * p + 10 * g + k + 1 for k in range(len(e.turns))] for g, e in enumerate(group.episodes)]
        for p, group in enumerate(groups)
    ]


def test_every_row_has_the_advantage_of_its_own_turn_also_behind_unusable_episodes() -> None:
    plays = {
        (0, 0): ["go", "win"],
        (0, 1): ["go", "go", "crash"],
        (0, 2): ["go", "go", "go", "win"],
        (1, 0): ["nan"],
        (1, 1): ["go", "lose"],
    }
    data = module(max_error_share=0.34)  # two of six
    [batch], rollout = epoch_of(data, scripted(plays, estimate=numbered))
    assert [episode.usable for episode in rollout.episodes] == [True, False, True, False, True, True]
    expected = {
        (*turn.prompt_ids, *turn.completion.token_ids, 100.0 * p + 10 * g + k + 1)
        for p, group in enumerate(rollout.groups)
        for g, episode in enumerate(group.episodes)
        for k, turn in enumerate(episode.turns)
        if episode.usable
    }
    found = set()
    for row in range(len(batch)):
        acts_T = batch.action_mask_NT[row]
        [advantage] = set(batch.advantages_NT[row][acts_T].tolist())
        assert batch.advantages_NT[row][~acts_T].abs().max() == 0
        found.add((*batch.input_ids_NT[row, : batch.lengths_N[row]].tolist(), advantage))
    assert found == expected
    assert len(batch) == 9  # 2 + 4 + 2 + 1 turns of usable episodes


def test_unusable_episodes_leave_the_statistics_but_are_counted() -> None:
    plays = {(0, 0): ["win"], (0, 1): ["wait", "crash"], (1, 0): ["nan"]}
    [batch], rollout = epoch_of(module(max_error_share=0.34), scripted(plays))
    assert len(batch) == 4
    assert rollout.measures["train/error_ratio"] == Measure(2, 6)
    assert rollout.measures["train/success_rate"] == Measure(1, 4)
    assert rollout.measures["train/reward"] == Measure(1.0, 4)
    assert rollout.measures["train/turns"] == Measure(4, 4)


def test_a_nan_reward_poisons_no_advantage_of_its_group() -> None:
    policy = scripted({(0, 0): ["nan"], (0, 1): ["win"]}, estimate=GroupNormalized(scale="none").estimate)
    [batch], _ = epoch_of(module(groups=1, max_error_share=0.34), policy)
    # returns 1 and 0 of the two others, less their mean 0.5
    assert sorted(set(batch.advantages_NT[batch.action_mask_NT].tolist())) == [-0.5, 0.5]


def test_entropies_reach_the_estimator_by_turn() -> None:
    seen: list[Advantages] = []

    def estimate(groups: Sequence[EpisodeGroup], entropies_PGK: Advantages) -> Advantages:
        seen.append(entropies_PGK)
        return entropies_PGK

    policy = scripted({(0, 0): ["go", "win"], (1, 1): ["crash"]}, estimate=estimate)
    policy.entropy = 1.5
    epoch_of(module(groups=2, group_size=2, max_error_share=0.25), policy)
    assert seen == [[[[1.5, 1.5], [1.5]], [[1.5], []]]]  # the crash in its first turn left no turn


def test_what_the_policy_takes_off_the_reward_is_off_the_turn_before_advantages() -> None:
    class Costly(ScriptedPolicy):
        def score(self, batch: TokenBatch) -> Scores:
            return replace(super().score(batch), penalties_NT=0.5 * batch.action_mask_NT)

    seen: list[list[float]] = []

    def estimate(groups: Sequence[EpisodeGroup], entropies_PGK: Advantages) -> Advantages:
        seen.extend([turn.penalty for turn in episode.turns] for group in groups for episode in group.episodes)
        return entropies_PGK

    script = {token_seed(0, 0, k): action for k, action in enumerate(["go", "bogus", "win"])}
    policy = Costly(lambda prompt, seed: say(script[seed]), estimate=estimate)
    epoch_of(module(groups=1, group_size=1), policy)
    # 0.5 a token: four tokens, and eight where the word is spelled in letters, which as an invalid turn costs 0.1 more
    assert seen == [[2.0, pytest.approx(4.1), 2.0]]


def test_more_errors_than_the_share_stop_the_run_with_one_sentence() -> None:
    policy = scripted({(0, 0): ["crash"], (1, 2): ["wait", "crash"]})
    with pytest.raises(ArlError) as caught:
        epoch_of(module(max_error_share=0.3), policy)  # 2 of 6 is more
    message = str(caught.value)
    assert message.startswith("2 of 6 episodes are not usable")
    assert message.endswith("RuntimeError: the script says crash")
    assert "\n" not in message
    batches, _ = epoch_of(module(max_error_share=0.34), policy)
    assert len(batches[0]) == 4


def test_an_epoch_in_which_nothing_could_be_played_is_an_error_and_no_silent_idling() -> None:
    policy = ScriptedPolicy([say("win")], max_context=12)  # no prompt fits
    with pytest.raises(ArlError, match=r"6 of 6 episodes .* do not fit the context"):
        epoch_of(module(), policy)


def test_the_same_seed_gives_the_same_batches_and_another_seed_or_epoch_others() -> None:
    def tokens(seed: int, epoch: int) -> list[list[list[int]]]:
        batches, _ = epoch_of(module(seed=seed, minibatches=2), ScriptedPolicy(wander), epoch=epoch)
        return [batch.input_ids_NT.tolist() for batch in batches]

    assert tokens(3, 0) == tokens(3, 0)
    assert tokens(3, 0) != tokens(4, 0)
    assert tokens(3, 0) != tokens(3, 1)


def test_seed_and_epoch_decide_the_tasks_and_the_order_of_rows_too() -> None:
    tasks: set[int] = set()
    orders: set[tuple[float, ...]] = set()
    for seed, epoch in [(3, 0), (3, 1), (4, 0)]:
        [batch], rollout = epoch_of(module(seed=seed), scripted({}, estimate=numbered), epoch=epoch)
        tasks |= {group.task_seed for group in rollout.groups}
        orders.add(tuple(batch.advantages_NT.amax(dim=1).tolist()))
    assert len(tasks) == 6  # 3 · 2 groups, none twice
    assert {tuple(sorted(order)) for order in orders} == {(1.0, 11.0, 21.0, 101.0, 111.0, 121.0)}
    assert len(orders) == 3


def test_an_episode_does_not_depend_on_how_many_groups_are_played_with_it() -> None:
    _, few = epoch_of(module(groups=1), ScriptedPolicy(wander))
    _, many = epoch_of(module(groups=4), ScriptedPolicy(wander))
    assert few.groups == many.groups[:1]
    assert len({group.task_seed for group in many.groups}) == 4


def test_members_of_a_group_start_equal_and_act_on_their_own() -> None:
    _, rollout = epoch_of(module(groups=3, group_size=6), ScriptedPolicy(wander))
    for group in rollout.groups:
        assert [episode.member for episode in group.episodes] == [0, 1, 2, 3, 4, 5]
        assert len({episode.turns[0].prompt_ids for episode in group.episodes}) == 1
        assert len({episode.turns[0].action for episode in group.episodes}) > 1


def test_a_gate_has_only_the_deficit_played_again_with_fresh_tasks() -> None:
    policy = scripted({(0, 0): ["win"]})  # group 0 is mixed, group 1 and all later ones fail
    [batch], rollout = epoch_of(module(), policy, DynamicFiltering(max_attempts=3, exhausted="shrink"))
    assert actions(rollout) == [[["win"], ["lose"], ["lose"]]]
    assert len(batch) == 3
    assert [len(call.prompts) for call in policy.calls] == [6, 3, 3]
    assert len({call.prompts[-1] for call in policy.calls}) == 3
    assert rollout.measures["filter/dropped_all_fail"] == Measure(3, 1)
    assert rollout.measures["train/success_rate"] == Measure(1, 12)  # of all that was played


@pytest.mark.parametrize("advantage", [GroupNormalized(), GiGPO(), EMPG()])
def test_a_skipped_epoch_is_empty_batches_whatever_the_estimator(advantage: AdvantageEstimator) -> None:
    policy = scripted({}, estimate=advantage.estimate)
    data = module(minibatches=4)
    attach(data, policy, [DynamicFiltering(max_attempts=2, exhausted="skip")])
    loader = data.train_dataloader()
    assert len(loader) == 4
    assert [len(batch) for batch in loader] == [0, 0, 0, 0]


def test_the_batch_carries_the_version_that_played_it_and_the_temperature() -> None:
    policy = ScriptedPolicy([say("lose")], logprob=-0.25, ref_logprob=-0.5)
    policy.policy_version = 12
    [batch], _ = epoch_of(module(decoding=Decoding(temperature=0.7, max_new_tokens=8)), policy)
    assert (batch.policy_version, batch.temperature) == (12, 0.7)
    acts_NT = batch.action_mask_NT
    assert set(batch.behavior_logprobs_NT[acts_NT].tolist()) == {-0.25}
    assert set(batch.old_logprobs_NT[acts_NT].tolist()) == {-0.25}
    assert set(batch.ref_logprobs_NT[acts_NT].tolist()) == {-0.5}


@pytest.mark.parametrize(("sequence", "segments"), [("turn", 4), ("episode", 2)])
def test_a_sequence_is_a_turn_or_an_episode_in_either_context(sequence: str, segments: int) -> None:
    for context, rows in [(None, 4), (FullContext(), 2)]:
        policy = scripted({(0, 0): ["go", "go", "win"]})
        data = module(task=scripted_task(context), groups=1, group_size=2, sequence=sequence)
        [batch], _ = epoch_of(data, policy)  # three turns and one
        assert len(batch) == rows
        assert len(set(batch.segment_ids_NT[batch.action_mask_NT].tolist())) == segments


@pytest.mark.parametrize("context", [None, FullContext()])
def test_invalid_turns_leave_the_loss_but_not_the_return_where_that_is_asked(context: Context | None) -> None:
    policy = scripted({(0, 0): ["go", "fly", "win"], (0, 1): ["fly"] * 3})  # `fly` is refused and costs 0.1
    seen: list[float] = []

    def returns(groups: Sequence[EpisodeGroup], entropies_PGK: Advantages) -> Advantages:
        seen.extend(episode.training_return for group in groups for episode in group.episodes)
        return numbered(groups, entropies_PGK)

    policy.estimate = returns
    task = replace(scripted_task(context, max_turns=3), learn_from_invalid=False)
    data = module(task=task, groups=1, group_size=2)
    [batch], _ = epoch_of(data, policy)
    assert seen == pytest.approx([0.9, -0.3])  # 1 − 0.1 and −3 · 0.1
    learnt = batch.advantages_NT[batch.action_mask_NT].tolist()
    assert sorted(set(learnt)) == [1.0, 3.0]  # the first episode's first and third turn; its second has 2
    assert len(batch) == (2 if context is None else 1)


def test_observers_hear_of_beginning_and_end_once_an_epoch() -> None:
    witness = Witness()
    data = module(groups=4, group_size=5)
    attach(data, ScriptedPolicy([say("lose")]), [witness], epoch=3)
    loader = data.train_dataloader()
    iter(loader)
    assert witness.started == []  # play begins with the first batch that is asked for
    list(loader)
    assert witness.started == [("train", 3, 20)]  # 4 · 5
    assert [(rollout.stage, rollout.epoch, len(rollout.groups)) for rollout in witness.rollouts] == [("train", 3, 4)]


# held-out play


def held_out(data: RolloutDataModule, policy: ScriptedPolicy, epoch: int = 0) -> list[Rollout]:
    attach(data, policy, epoch=epoch)
    return list(data.val_dataloader())


def test_held_out_tasks_are_the_first_seeds_with_distinct_initial_states() -> None:
    task = scripted_task(places=[5, 5, 6, 5, 7, 6, 8])
    assert HeldOut(tasks=4).seeds(task) == [0, 2, 4, 6]
    assert HeldOut(tasks=3, first_seed=5).seeds(task) == [5, 6, 7]


def test_too_few_distinct_held_out_tasks_are_an_error_with_the_number_found() -> None:
    with pytest.raises(ArlError, match="only 3 distinct tasks"):
        HeldOut(tasks=4).seeds(scripted_task(places=[5, 6, 7]))


def test_an_environment_that_fails_at_a_held_out_start_is_named_with_the_seed() -> None:
    with pytest.raises(ArlError, match="task seed 1: RuntimeError: scripted failure"):
        HeldOut(tasks=4).seeds(scripted_task(failing_seeds=[1]))


def test_held_out_tasks_come_from_the_stages_own_options() -> None:
    [first, _] = held_out(module(validation=HeldOut(2, {"places": [70, 71]}, portion=1)), ScriptedPolicy([say("win")]))
    assert first.episodes[0].turns[0].observation == "place 70"


def test_each_decoding_plays_every_task_once_in_portions_and_the_first_reports_plainly() -> None:
    decodings = {"sampled": Decoding(max_new_tokens=8), "brief": Decoding(max_new_tokens=2)}
    data = module(validation=HeldOut(tasks=5, env_options={}, decodings=decodings, portion=3))
    rollouts = held_out(data, ScriptedPolicy([say("win")]))
    assert len(data.val_dataloader()) == len(rollouts) == 4
    assert [(r.stage, [group.task_seed for group in r.groups]) for r in rollouts] == [
        ("val", [0, 1, 2]),
        ("val", [3, 4]),
        ("val/brief", [0, 1, 2]),
        ("val/brief", [3, 4]),
    ]
    assert rollouts[1].measures["val/success_rate"] == Measure(2, 2)
    assert rollouts[3].measures["val/brief/success_rate"] == Measure(0, 2)  # two tokens hold no answer


def test_held_out_play_repeats_its_draws_in_every_epoch_and_is_never_filtered() -> None:
    data = module()
    early = held_out(data, ScriptedPolicy(wander), epoch=0)
    attach(data, ScriptedPolicy(wander), [DynamicFiltering()], epoch=9)
    late = list(data.val_dataloader())
    assert [rollout.groups for rollout in early] == [rollout.groups for rollout in late]
    assert sum(len(rollout.groups) for rollout in late) == 5


def test_held_out_errors_stop_the_run_too() -> None:
    with pytest.raises(ArlError, match="3 of 3 episodes"):
        held_out(module(), ScriptedPolicy([say("crash")]))


# what is refused


@pytest.mark.parametrize(
    ("knobs", "name"),
    [
        ({"decoding": Decoding(temperature=0.0)}, "temperature"),
        ({"groups": 0}, "groups"),
        ({"minibatches": 0}, "minibatches"),
    ],
)
def test_settings_without_anything_to_learn_from_are_refused(knobs: dict[str, Any], name: str) -> None:
    with pytest.raises(ArlError, match=name):
        module(**knobs)


def test_a_module_that_cannot_act_is_refused_by_name() -> None:
    data = module()
    attach(data, object())
    with pytest.raises(ArlError, match="object cannot act"):
        list(data.train_dataloader())


def test_play_needs_a_trainer() -> None:
    with pytest.raises(RuntimeError, match="attach the data module to a Trainer"):
        list(module().train_dataloader())


# under the real Trainer


@dataclass
class Steps:
    """Batches as they arrive, with the version that played them."""

    versions: list[int] = field(default_factory=list)


class RecordingAgent(AgentModule):
    def __init__(self, steps: Steps) -> None:
        objective = Objective(TokenClip(), TokenMean(), GroupNormalized())
        super().__init__(TinyModel(WORDS, hidden_size=16, layers=1, heads=2, mlp_size=32), objective)
        self.steps = steps

    def training_step(self, batch: TrajectoryBatch, batch_idx: int) -> Any:
        self.steps.versions.append(batch.policy_version)
        return super().training_step(batch, batch_idx)


def test_lightning_plays_each_epoch_with_the_weights_that_the_epoch_before_left() -> None:
    data, steps = module(groups=2, group_size=2, minibatches=2, task=scripted_task(max_turns=2)), Steps()
    trainer = Trainer(
        max_epochs=3,
        reload_dataloaders_every_n_epochs=1,
        num_sanity_val_steps=0,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(RecordingAgent(steps), cast(Any, data))
    assert steps.versions == [0, 0, 2, 2, 4, 4]  # two steps an epoch
    assert trainer.global_step == 6
    assert math.isclose(float(trainer.callback_metrics["val/turns"]), 2.0)  # random tokens never win
    assert torch.isfinite(trainer.callback_metrics["train/loss"])
