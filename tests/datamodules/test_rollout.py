"""Play: who is asked when, what is recorded, and that one episode's fault stays its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest

from arl_lightning.datamodules.conversation import FullContext
from arl_lightning.datamodules.prompting import TaggedAction
from arl_lightning.datamodules.rollout import Clock, EpisodeRequest, Player
from arl_lightning.datamodules.scene import Scene
from arl_lightning.datamodules.task import Task
from arl_lightning.envs.pool import LocalPool, Reply
from arl_lightning.functional.seeding import Stream, derive_seed
from arl_lightning.protocols import RolloutObserver
from arl_lightning.testing import SCRIPT, Outcome, ScriptedPolicy, scripted_task
from arl_lightning.types import INVALID_ACTION, Decoding, Episode, Rollout, StopReason

say = TaggedAction().write
DECODING = Decoding(max_new_tokens=16)


def play(
    policy: ScriptedPolicy,
    requests: Sequence[EpisodeRequest],
    task: Task | None = None,
    observers: Sequence[RolloutObserver] = (),
    decoding: Decoding = DECODING,
) -> list[Episode]:
    task = scripted_task() if task is None else task
    player = Player(task, {})
    scene = Scene(policy, (), tuple(observers), epoch=0)
    try:
        return player.play(requests, scene, task.context.bind(policy.tokenizer, task.prompt), decoding)
    finally:
        player.close()


def following(*scripts: Sequence[str]) -> ScriptedPolicy:
    """Answers `scripts[e][k]` at turn k of the episode whose token seeds are 100 e + k."""
    return ScriptedPolicy(lambda prompt, seed: scripts[seed // 100][seed % 100])


def requests(*task_seeds: int) -> list[EpisodeRequest]:
    return [EpisodeRequest(seed, e, partial(int.__add__, 100 * e)) for e, seed in enumerate(task_seeds)]


def actions(episode: Episode) -> list[str]:
    return [turn.action for turn in episode.turns]


def test_episodes_advance_in_lockstep_and_only_those_still_going_are_sampled() -> None:
    policy = following([say("wait"), say("wait"), say("win")], [say("lose")], [say("wait"), say("cut")])
    episodes = play(policy, requests(5, 6, 7))
    assert [call.seeds for call in policy.calls] == [(0, 100, 200), (1, 201), (2,)]
    assert [actions(episode) for episode in episodes] == [["wait", "wait", "win"], ["lose"], ["wait", "cut"]]


def test_each_episode_ends_for_its_own_reason() -> None:
    policy = following([say("win")], [say("lose")], [say("cut")], [say("wait")] * 3)
    episodes = play(policy, requests(5, 6, 7, 8), scripted_task(max_turns=3))
    assert [episode.stop for episode in episodes] == [
        StopReason.TERMINATED,
        StopReason.TERMINATED,
        StopReason.TRUNCATED,
        StopReason.TURN_LIMIT,
    ]
    assert [episode.success for episode in episodes] == [True, False, False, False]
    assert [len(episode.turns) for episode in episodes] == [1, 1, 1, 3]


def test_an_end_in_the_last_allowed_turn_is_the_environments_own() -> None:
    [episode] = play(following([say("wait"), say("win")]), requests(5), scripted_task(max_turns=2))
    assert episode.stop is StopReason.TERMINATED


def test_members_of_a_group_start_equal_also_in_environments_that_were_used_before() -> None:
    task = scripted_task()
    policy = following([say("go"), say("lose")], [say("lose")], [say("go"), say("go"), say("win")])
    dialogue = task.context.bind(policy.tokenizer, task.prompt)
    player = Player(task, {})
    scene = Scene(policy, (), (), epoch=0)
    for seed in (7, 9):
        members = player.play(requests(seed, seed, seed), scene, dialogue, DECODING)
        assert [m.turns[0].observation for m in members] == [f"place {seed}"] * 3
        assert [m.turns[0].state_key for m in members] == [seed] * 3
        assert len({m.turns[0].prompt_ids for m in members}) == 1
        assert [m.member for m in members] == [0, 1, 2]
    player.close()


def test_a_turn_records_the_state_that_was_shown_and_the_reward_of_leaving_it() -> None:
    [episode] = play(following([say("go"), say("win")]), requests(4))
    first, second = episode.turns
    assert (first.observation, first.state_key, first.reward) == ("place 4", 4, 0.0)
    assert (second.observation, second.state_key, second.reward) == ("place 5", 5, 1.0)


def test_a_malformed_answer_reaches_the_environment_as_invalid() -> None:
    script = {INVALID_ACTION: Outcome(move=5), "win": SCRIPT["win"]}  # moves only if it is told so
    [episode] = play(following(["win", say("win")]), requests(4), scripted_task(script=script))
    assert [turn.observation for turn in episode.turns] == ["place 4", "place 9"]  # 4 + 5
    assert actions(episode) == [INVALID_ACTION, "win"]
    assert [turn.valid for turn in episode.turns] == [False, True]
    assert episode.turns[0].response == "win"


def test_the_format_penalty_falls_on_the_offending_turns_only() -> None:
    answers = ["no tags", say("wait"), say("fly"), say("win")]  # `fly` is well formed but the environment refuses it
    [episode] = play(following(answers), requests(4), scripted_task(format_penalty=0.25))
    assert [turn.penalty for turn in episode.turns] == [0.25, 0.0, 0.25, 0.0]
    assert [turn.training_reward for turn in episode.turns] == [-0.25, 0.0, -0.25, 1.0]
    assert (episode.score, episode.training_return) == (1.0, 0.5)  # 1 − 2 · 0.25


def test_the_response_is_read_without_its_end_token_and_a_cut_one_whole() -> None:
    policy = following([say("wait")])
    [episode] = play(policy, requests(4), scripted_task(max_turns=1))
    assert episode.turns[0].response == "<action>wait</action>"
    [cut] = play(policy, requests(4), scripted_task(max_turns=1), decoding=Decoding(max_new_tokens=2))
    assert cut.turns[0].response == "<action>wait"
    assert not cut.turns[0].completion.finished
    assert cut.turns[0].action == INVALID_ACTION


# a prompt "place 7" is 10 tokens: <|im_start|> user \n | "place " 7 | <|im_end|> \n <|im_start|> assistant \n


@pytest.mark.parametrize(("max_context", "stop"), [(14, StopReason.TERMINATED), (13, StopReason.CONTEXT_LIMIT)])
def test_a_prompt_must_leave_room_for_a_whole_response(max_context: int, stop: StopReason) -> None:
    policy = ScriptedPolicy([say("win")], max_context=max_context)
    [episode] = play(policy, requests(7), decoding=Decoding(max_new_tokens=4))  # 10 + 4
    assert episode.stop is stop
    assert len(policy.calls) == len(episode.turns) == (stop is StopReason.TERMINATED)


def test_a_prompt_that_does_not_fit_ends_only_its_own_episode() -> None:
    policy = ScriptedPolicy([say("win")], max_context=14)
    short, long = play(policy, requests(7, 77), decoding=Decoding(max_new_tokens=4))  # 10 and 11 tokens
    assert (short.stop, long.stop) == (StopReason.TERMINATED, StopReason.CONTEXT_LIMIT)
    assert [call.seeds for call in policy.calls] == [(0,)]


@pytest.mark.parametrize(("max_context", "turns"), [(29, 2), (28, 1)])
def test_a_growing_conversation_stops_at_the_context_limit_and_keeps_its_turns(max_context: int, turns: int) -> None:
    policy = ScriptedPolicy([say("wait")], max_context=max_context)
    task = scripted_task(FullContext())
    # second prompt: 10 of the first, 4 sampled, 1 line break, 10 of the next message; 25 + 4 = 29
    [episode] = play(policy, requests(7), task, decoding=Decoding(max_new_tokens=4))
    assert episode.stop is StopReason.CONTEXT_LIMIT
    assert len(episode.turns) == turns
    assert episode.usable


def test_a_reset_that_raises_ends_only_its_own_episode_which_is_never_sampled() -> None:
    policy = ScriptedPolicy([say("win")])
    episodes = play(policy, requests(2, 3, 4), scripted_task(failing_seeds=[3]))
    assert [episode.stop for episode in episodes] == [StopReason.TERMINATED, StopReason.ERROR, StopReason.TERMINATED]
    assert [call.prompts for call in policy.calls] == [
        tuple(f"<|im_start|>user\nplace {n}<|im_end|>\n<|im_start|>assistant\n" for n in (2, 4))
    ]
    failed = episodes[1]
    assert failed.turns == ()
    assert not failed.usable
    assert failed.error is not None
    assert failed.error.startswith("Traceback")
    assert failed.error.rstrip().endswith("RuntimeError: scripted failure of task 3 at step 0")


def test_a_step_that_raises_ends_only_its_own_episode_and_keeps_the_turns_before() -> None:
    policy = following([say("wait"), say("crash")], [say("wait"), say("wait"), say("win")])
    failed, other = play(policy, requests(2, 2))
    assert (failed.stop, actions(failed), failed.usable) == (StopReason.ERROR, ["wait"], False)
    assert "RuntimeError: the script says crash" in (failed.error or "")
    assert (other.stop, actions(other), other.usable) == (StopReason.TERMINATED, ["wait", "wait", "win"], True)
    assert other.error is None


def test_an_environment_that_raised_plays_the_next_task() -> None:
    task = scripted_task(failing_seeds=[3], failing_step=1)
    policy = ScriptedPolicy([say("win")])
    dialogue = task.context.bind(policy.tokenizer, task.prompt)
    player = Player(task, {})
    scene = Scene(policy, (), (), epoch=0)
    stops = [player.play(requests(seed), scene, dialogue, DECODING)[0].stop for seed in (3, 4)]
    player.close()
    assert stops == [StopReason.ERROR, StopReason.TERMINATED]


def test_a_nan_reward_makes_the_episode_unusable() -> None:
    [episode] = play(following([say("wait"), say("nan")]), requests(4))
    assert (episode.stop, len(episode.turns), episode.usable) == (StopReason.TERMINATED, 2, False)


def member(task_seed: int, group: int, number: int) -> EpisodeRequest:
    return EpisodeRequest(task_seed, number, partial(derive_seed, 0, Stream.TRAIN_TOKEN, group, number))


def wander(prompt: str, seed: int) -> str:
    return say(["go", "wait", "win", "lose", "cut"][(seed + sum(map(ord, prompt))) % 5])


def test_an_episode_is_the_same_alone_and_among_many() -> None:
    crowd = [member(task_seed, group, number) for group, task_seed in enumerate((3, 14, 15)) for number in range(4)]
    together = play(ScriptedPolicy(wander), crowd)
    apart = [play(ScriptedPolicy(wander), [request])[0] for request in crowd]
    backwards = play(ScriptedPolicy(wander), crowd[::-1])[::-1]
    assert together == apart == backwards
    assert len({tuple(actions(episode)) for episode in together}) > 3  # else nothing would be compared


class Tally:
    """A RolloutObserver that keeps what it is told of progress."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, int]] = []

    def rollout_started(self, stage: str, epoch: int, episodes: int) -> None:
        raise AssertionError("a Player plays; it does not know what for")

    def rollout_advanced(self, finished: int, succeeded: int, turns: int) -> None:
        self.told.append((finished, succeeded, turns))

    rollout_finished: Callable[[Rollout], None] = rollout_started  # type: ignore[assignment]


def test_observers_hear_after_each_turn_who_is_finished_who_succeeded_and_who_took_it() -> None:
    tally = Tally()
    play(following([say("win")], [say("wait"), say("lose")], [say("wait")] * 5), requests(1, 2, 3), observers=[tally])
    assert tally.told == [(1, 1, 3), (2, 1, 2), (2, 1, 1), (2, 1, 1), (3, 1, 1)]


def test_a_clock_books_time_under_its_name_only() -> None:
    clock = Clock()
    assert clock.time("environment", lambda: sum(range(10_000))) == 49_995_000  # 9999 · 10000 / 2
    assert clock.seconds["environment"] > 0
    assert (clock.seconds["generate"], clock.seconds["score"]) == (0.0, 0.0)


def restless(prompt: str, seed: int) -> str:
    return say(["go", "wait", "fly", "win", "lose", "cut", "crash"][(seed + 3 * len(prompt)) % 7])


def test_how_many_are_admitted_at_once_and_how_many_cohorts_there_are_changes_no_episode() -> None:
    seeds = range(12)
    whole = play(ScriptedPolicy(restless), requests(*seeds))
    assert len({len(episode.turns) for episode in whole}) > 2
    for admits, pipeline in [(5, 1), (1, 1), (100, 3), (2, 2)]:
        task = replace(scripted_task(), pipeline=pipeline)
        policy = ScriptedPolicy(restless, admits=admits)
        episodes = play(policy, requests(*seeds), task)
        assert [replace(e, error=None) for e in episodes] == [replace(e, error=None) for e in whole]
        assert max(len(call.seeds) for call in policy.calls) == min(admits, 12 // pipeline)


def test_those_in_front_end_first_and_the_rest_fill_the_room_they_leave() -> None:
    policy = following([say("wait"), say("win")], [say("win")], [say("win")], [say("wait"), say("win")])
    policy.admits = 2
    play(policy, requests(5, 6, 7, 8))
    assert [call.seeds for call in policy.calls] == [(0, 100), (1, 200), (300,), (301,)]


def test_while_one_cohorts_environments_step_the_others_responses_are_drawn() -> None:
    """Each of two cohorts needs the other to get on: the environments' step waits until the other's turn is drawn."""
    drawn = threading.Semaphore(0)
    waited: list[bool] = []

    class WaitingPool(LocalPool):
        def step(self, actions: Mapping[int, str]) -> dict[int, Reply]:
            waited.append(drawn.acquire(timeout=10))
            return super().step(actions)

    def answer(prompt: str, seed: int) -> str:
        if seed >= 100:
            drawn.release()  # the second cohort speaks, so that the first one's step may end, and its own
            drawn.release()
        return say("win")

    task = replace(scripted_task(), pipeline=2)
    policy = ScriptedPolicy(answer)
    player = Player(task, {})
    player._pool = WaitingPool(partial(task.make_env, {}))
    dialogue = task.context.bind(policy.tokenizer, task.prompt)
    episodes = player.play(requests(5, 6), Scene(policy, (), (), epoch=0), dialogue, DECODING)
    player.close()
    assert waited == [True, True]
    assert all(episode.success for episode in episodes)
