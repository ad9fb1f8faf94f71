"""Demonstrations: distinct tasks, the expert's actions, and exactly the tokens that play would show."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import gymnasium
import pytest
from gymnasium.envs.registration import register, registry

from arl_lightning.datamodules.conversation import Context, FullContext, WindowContext
from arl_lightning.datamodules.demonstrations import DemonstrationDataModule
from arl_lightning.datamodules.prompting import PromptTemplate, TaggedAction
from arl_lightning.datamodules.rollout import EpisodeRequest, Player
from arl_lightning.datamodules.scene import Scene
from arl_lightning.datamodules.task import Task
from arl_lightning.functional.seeding import Stream, derive_seed
from arl_lightning.testing import Outcome, ScriptedPolicy, attach, scripted_task
from arl_lightning.types import ArlError, Decoding, TokenBatch

say = TaggedAction().write
PLAN = (("go",), ("win",))
POLICY = ScriptedPolicy([])  # only its tokenizer is used


def module(context: Context | None = None, **knobs: Any) -> DemonstrationDataModule:
    task = knobs.pop("task", None) or scripted_task(context, expert=knobs.pop("expert", PLAN))
    return DemonstrationDataModule(task, **{"episodes": 3, "batch_size": 6, "steps_per_epoch": 1, **knobs})


def batches_of(data: DemonstrationDataModule, epoch: int = 0) -> list[TokenBatch]:
    attach(data, POLICY, epoch=epoch)
    return list(data.train_dataloader())


def texts(data: DemonstrationDataModule, epoch: int = 0, acted: bool = False) -> list[str]:
    """Each row of the epoch as text: the whole row, or only what is under the action mask."""
    return [
        POLICY.tokenizer.decode(
            (batch.input_ids_NT[i][batch.action_mask_NT[i]] if acted else batch.input_ids_NT[i, :length]).tolist()
        )
        for batch in batches_of(data, epoch)
        for i, length in enumerate(batch.lengths_N.tolist())
    ]


def place(text: str) -> str:
    return text.partition("place ")[2].partition("<|im_end|>")[0]


def test_no_two_demonstrations_begin_in_the_same_state() -> None:
    task = scripted_task(places=[40, 40, 40, 50, 60], expert=[("win",)])
    starts = [place(text) for text in texts(module(task=task, batch_size=6))]  # six draws of all rows
    assert sorted(starts) == ["40", "40", "50", "50", "60", "60"]


def test_cloning_by_several_processes_is_refused() -> None:
    data = module()
    data.trainer = cast(Any, SimpleNamespace(world_size=2))
    with pytest.raises(ArlError, match="devices 1"):
        data.setup("fit")


def test_more_demonstrations_than_distinct_tasks_are_an_error_with_the_number_found() -> None:
    with pytest.raises(ArlError, match="only 2 distinct tasks for 3 demonstrations"):
        batches_of(module(task=scripted_task(places=[1, 2])))


def test_without_random_moves_every_response_is_the_experts() -> None:
    # three episodes of two turns: each turn is a row, and the mask covers the response with its end token only
    assert sorted(texts(module(), acted=True)) == [say("go") + "<|im_end|>"] * 3 + [say("win") + "<|im_end|>"] * 3


def test_equally_good_actions_are_all_demonstrated() -> None:
    data = module(expert=[("win", "lose")], episodes=20, batch_size=20)
    assert set(texts(data, acted=True)) == {say(action) + "<|im_end|>" for action in ("win", "lose")}


def test_random_moves_are_admissible_ones_in_about_their_share() -> None:
    # any of the five admissible actions; `wait` and `go` lead to a further turn, the other three end the episode
    data = module(expert=[("win",)], random_share=0.5, episodes=200, batch_size=500)
    said = texts(data, acted=True)
    # the expert's action is said with 0.5 + 0.5 / 5 = 0.6; 200 episodes of 1 / (1 - 0.2) turns leave about 250 rows,
    # each drawn twice, so that sigma is √(0.24 / 250) = 0.03
    assert sum(text.startswith(say("win")) for text in said) / len(said) == pytest.approx(0.6, abs=0.11)
    assert set(said) == {say(action) + "<|im_end|>" for action in ("win", "lose", "cut", "wait", "go")}


def test_where_the_expert_knows_nothing_an_admissible_action_is_taken() -> None:
    said = texts(module(expert=[(), ("win",)], episodes=30, batch_size=30), acted=True)
    assert {text.removesuffix("<|im_end|>") for text in said} > {say("lose"), say("cut")}


@pytest.mark.parametrize(("context", "rows"), [(WindowContext(history_window=1), 6), (FullContext(), 3)])
def test_the_tokens_are_those_of_play(context: Context, rows: int) -> None:
    prompt = PromptTemplate("{history}{observation} {turn}", system_text="Win.")
    task = Task(scripted_task().env_id, prompt, TaggedAction(), context, {"expert": PLAN})
    policy = ScriptedPolicy([say("go"), say("win")])
    requests = [
        EpisodeRequest(derive_seed(5, Stream.DEMONSTRATION, number), 0, partial(int.__add__, 0)) for number in range(3)
    ]
    dialogue = context.bind(policy.tokenizer, prompt)
    player = Player(task, {})
    episodes = player.play(requests, Scene(policy, (), (), epoch=0), dialogue, Decoding(max_new_tokens=8))
    player.close()
    played = [row for episode in episodes for row in dialogue.rows(episode, first_turn=0)]

    data = module(task=task, seed=5, batch_size=len(played))
    [batch] = batches_of(data)
    demonstrated = {
        (tuple(batch.input_ids_NT[i, :n].tolist()), tuple(batch.action_mask_NT[i, :n].tolist()))
        for i, n in enumerate(batch.lengths_N.tolist())
    }
    assert demonstrated == {(row.token_ids, row.action_mask) for row in played}
    assert len(demonstrated) == rows  # three episodes of two turns


def test_an_epoch_has_its_steps_and_uses_each_row_once_before_any_twice() -> None:
    data = module(batch_size=4, steps_per_epoch=3)  # 12 draws of 6 rows
    assert [len(batch) for batch in batches_of(data)] == [4, 4, 4]
    drawn = texts(data)
    assert len(set(drawn[:6])) == len(set(drawn[6:])) == 6


def test_the_seed_decides_the_demonstrations_and_seed_and_epoch_their_order() -> None:
    first = texts(module(seed=1, episodes=10, batch_size=20))
    assert texts(module(seed=1, episodes=10, batch_size=20)) == first
    assert set(texts(module(seed=2, episodes=10, batch_size=20))).isdisjoint(first)
    later = texts(module(seed=1, episodes=10, batch_size=20), epoch=1)
    assert later != first
    assert sorted(later) == sorted(first)


def test_a_state_without_any_action_is_an_error_that_says_where() -> None:
    task = scripted_task(script={"crash": Outcome(error="never listed")}, expert=[()])
    with pytest.raises(ArlError, match=r"neither an expert's nor an admissible action .* turn 1"):
        batches_of(module(task=task))


class Mute(gymnasium.Env[str, str]):
    """An environment without an expert."""


def test_an_environment_without_an_expert_cannot_demonstrate() -> None:
    if "arl-test/Mute-v0" not in registry:
        register(id="arl-test/Mute-v0", entry_point=lambda **options: Mute())
    task = Task("arl-test/Mute-v0", PromptTemplate(), TaggedAction(), WindowContext())
    with pytest.raises(ArlError, match="no expert_actions"):
        batches_of(module(task=task))


@pytest.mark.parametrize(
    "knobs", [{"episodes": 0}, {"batch_size": 0}, {"steps_per_epoch": 0}, {"random_share": 1.5}, {"random_share": -0.1}]
)
def test_a_knob_out_of_range_fails_where_it_is_set(knobs: dict[str, Any]) -> None:
    with pytest.raises(ArlError, match=next(iter(knobs))):
        module(**knobs)
