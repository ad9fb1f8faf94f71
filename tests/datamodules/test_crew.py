"""Two processes that share the work of play come to know and to decide what one process alone does."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.strategies import (
    DDPStrategy,
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    SingleDeviceStrategy,
    Strategy,
)
from torch import Tensor, distributed

from arl_lightning.callbacks.dynamic_filtering import DynamicFiltering
from arl_lightning.datamodules.conversation import FullContext
from arl_lightning.datamodules.crew import ALONE, Crew, shares
from arl_lightning.datamodules.held_out import HeldOut
from arl_lightning.datamodules.prompting import TaggedAction
from arl_lightning.datamodules.rollout_datamodule import RolloutDataModule
from arl_lightning.modules.estimators import EMPG
from arl_lightning.testing import ScriptedPolicy, scripted_task
from arl_lightning.types import ArlError, Decoding, Rollout, Scores, TokenBatch, TrajectoryBatch

EPOCHS = ("turns", "episodes", "conversations", "few")
say = TaggedAction().write


@dataclass
class Witness:
    """Keeps what play leaves behind."""

    rollouts: list[Rollout] = field(default_factory=list)

    def rollout_started(self, stage: str, epoch: int, episodes: int) -> None:
        pass

    def rollout_advanced(self, finished: int, succeeded: int, turns: int) -> None:
        pass

    def rollout_finished(self, rollout: Rollout) -> None:
        self.rollouts.append(rollout)


class Judge(ScriptedPolicy):
    """Scores each token by itself, so that scores put in the wrong place would show."""

    def score(self, batch: TokenBatch) -> Scores:
        values_NT = (batch.input_ids_NT * batch.action_mask_NT).float()
        return Scores(-values_NT, -values_NT / 2, values_NT / 3, values_NT / 1000)


def wander(prompt: str, seed: int) -> str:
    return say(["go", "wait", "win", "lose", "fly"][(seed + sum(map(ord, prompt))) % 5])


def attached(data: RolloutDataModule, policy: ScriptedPolicy, crew: Crew, *callbacks: object) -> RolloutDataModule:
    strategy = SingleDeviceStrategy("cpu") if crew.size == 1 else DDPStrategy()
    scene = {"lightning_module": policy, "callbacks": list(callbacks), "current_epoch": 1, "strategy": strategy}
    data.trainer = cast(Any, SimpleNamespace(**scene, global_rank=crew.rank, world_size=crew.size))
    data.setup("fit")
    return data


def data_of(context: FullContext | None = None, **knobs: Any) -> RolloutDataModule:
    held_out = HeldOut(tasks=5, decodings={"sampled": Decoding(max_new_tokens=8)}, portion=3)
    defaults: dict[str, Any] = {"groups": 5, "group_size": 3, "minibatches": 4, "validation": held_out}
    task = scripted_task(context, max_turns=4)
    return RolloutDataModule(task, Decoding(max_new_tokens=8), **{**defaults, **knobs})


def tensors(batch: TrajectoryBatch) -> dict[str, Tensor]:
    return {f.name: value for f in fields(batch) if isinstance(value := getattr(batch, f.name), Tensor)}


def an_epoch(crew: Crew, data: RolloutDataModule) -> dict[str, Any]:
    """One epoch with resampling: what was played, kept, counted and learnt from, and this process's part of it."""
    policy, witness = Judge(wander, estimate=EMPG().estimate), Witness()
    attached(data, policy, crew, witness, DynamicFiltering(max_attempts=3))
    batches = list(data.train_dataloader())
    own = [data.on_before_batch_transfer(batch, 0) for batch in batches]
    [rollout] = witness.rollouts
    measures = {name: m for name, m in rollout.measures.items() if not name.startswith(("time/", "throughput/"))}
    return {
        "groups": rollout.groups,
        "measures": measures,
        "batches": [tensors(batch) for batch in batches],
        "own": [tensors(batch) for batch in own],
        "asked": sum(len(call.prompts) for call in policy.calls),
    }


def held_out(crew: Crew) -> list[Any]:
    """Portions of held-out episodes and their measures."""
    data = attached(data_of(), ScriptedPolicy(wander), crew)
    return [(rollout.groups, dict(rollout.measures)) for rollout in data.val_dataloader()]


def failure(work: Callable[[], object]) -> str:
    """Kind and sentence of the error that `work` ends with."""
    try:
        work()
    except (ArlError, ZeroDivisionError) as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def faults(crew: Crew) -> list[str]:
    """How this process ends when the last one is at fault, and when environments are."""

    def fail(error: Exception) -> str:
        if crew.rank == crew.size - 1:
            raise error
        return "done"

    def divided(numbers: Sequence[int]) -> list[str]:
        return [fail(ArlError("the disk is full: free some")) for _ in numbers]

    broken = attached(data_of(max_error_share=0.1), ScriptedPolicy([say("crash"), say("win")]), crew)
    return [
        failure(lambda: crew.gather(lambda: fail(ArlError("the disk is full: free some")))),
        failure(lambda: crew.gather(lambda: fail(ZeroDivisionError("by 0")))),
        failure(lambda: crew.divide([1, 1, 1], divided)),
        failure(lambda: list(broken.train_dataloader())).partition(";")[0],
        str(crew.gather(lambda: crew.rank)),  # and they still understand each other
    ]


def everything(crew: Crew) -> dict[str, Any]:
    """All of it by name."""
    return {
        "turns": an_epoch(crew, data_of()),
        "episodes": an_epoch(crew, data_of(sequence="episode")),
        "conversations": an_epoch(crew, data_of(FullContext())),
        "few": an_epoch(crew, data_of(groups=1, group_size=2, minibatches=12)),
        "held_out": held_out(crew),
        "faults": faults(crew),
    }


def process(folder: Path, rank: int) -> None:
    """Leaves what process `rank` of two sees in `folder`."""
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.save(everything(Crew(rank, 2)), folder / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return everything(ALONE)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the two see; they are forked, since each would otherwise import for seconds."""
    folder = tmp_path_factory.mktemp("pair")
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=process, args=(folder, rank)) for rank in (0, 1)]
    for child in children:
        child.start()
    for child in children:
        child.join(timeout=300)
    ended = [child.exitcode for child in children]
    for child in children:
        child.kill()
    assert ended == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@pytest.mark.parametrize("epoch", EPOCHS)
@pytest.mark.parametrize("part", ["groups", "measures", "batches"])
def test_both_processes_know_the_whole_epoch_as_one_process_plays_it(
    epoch: str, part: str, alone: dict[str, Any], pair: list[dict[str, Any]]
) -> None:
    assert same(pair[0][epoch][part], alone[epoch][part])
    assert same(pair[1][epoch][part], alone[epoch][part])


def test_filtering_and_resampling_took_place(alone: dict[str, Any]) -> None:
    counted = {name: measure.total for name, measure in alone["turns"]["measures"].items()}
    assert counted["filter/attempts"] > 1
    assert counted["filter/dropped"] > 0


@pytest.mark.parametrize("epoch", EPOCHS)
def test_each_response_is_drawn_by_one_process_only(
    epoch: str, alone: dict[str, Any], pair: list[dict[str, Any]]
) -> None:
    asked = [found[epoch]["asked"] for found in pair]
    assert sum(asked) == alone[epoch]["asked"]
    assert epoch == "few" or min(asked) > 0.25 * sum(asked)


def rows(batch: dict[str, torch.Tensor]) -> list[tuple[Any, ...]]:
    """The rows that teach anything, without their padding."""
    names = [name for name in batch if name.endswith("_NT")]
    return [
        tuple(tuple(batch[name][row, :length].tolist()) for name in names)
        for row, length in enumerate(batch["lengths_N"].tolist())
        if batch["action_mask_NT"][row].any()
    ]


def segments(batch: dict[str, torch.Tensor]) -> set[int]:
    return set(batch["segment_ids_NT"].flatten().tolist()) - {-1}


@pytest.mark.parametrize("epoch", EPOCHS)
def test_each_row_of_a_minibatch_is_learnt_by_one_process_and_no_segment_by_two(
    epoch: str, pair: list[dict[str, Any]]
) -> None:
    for whole, first, second in zip(
        pair[0][epoch]["batches"], pair[0][epoch]["own"], pair[1][epoch]["own"], strict=True
    ):
        assert sorted(rows(first) + rows(second)) == sorted(rows(whole))
        assert not segments(first) & segments(second)


def test_the_processes_have_nearly_equally_many_tokens_to_learn_from(pair: list[dict[str, Any]]) -> None:
    for batches in zip(pair[0]["turns"]["own"], pair[1]["turns"]["own"], strict=True):
        first, second = (int(batch["lengths_N"].sum()) for batch in batches)
        longest = max(int(batch["lengths_N"].max()) for batch in batches)
        assert abs(first - second) <= longest


def test_a_process_without_a_row_takes_part_with_one_that_teaches_nothing(pair: list[dict[str, Any]]) -> None:
    idle = [
        own
        for found in pair
        for whole, own in zip(found["few"]["batches"], found["few"]["own"], strict=True)
        if len(whole["lengths_N"]) and not own["action_mask_NT"].any()
    ]
    assert idle
    for own in idle:
        assert len(own["lengths_N"]) == 1
        assert segments(own) == set()
        for name in ("advantages_NT", "old_logprobs_NT", "ref_logprobs_NT", "behavior_logprobs_NT"):
            assert not own[name].any()


def test_a_minibatch_without_rows_has_none_in_any_process(pair: list[dict[str, Any]]) -> None:
    empty = [
        (len(first["lengths_N"]), len(second["lengths_N"]))
        for whole, first, second in zip(
            pair[0]["few"]["batches"], pair[0]["few"]["own"], pair[1]["few"]["own"], strict=True
        )
        if not len(whole["lengths_N"])
    ]
    assert set(empty) == {(0, 0)}  # two episodes of at most four turns are cut into twelve mini-batches


def test_held_out_play_has_the_same_episodes_and_numbers(alone: dict[str, Any], pair: list[dict[str, Any]]) -> None:
    assert [len(groups) for groups, _ in alone["held_out"]] == [3, 2]
    assert pair[0]["held_out"] == pair[1]["held_out"] == alone["held_out"]


def test_a_fault_of_one_process_ends_all_with_its_sentence(alone: dict[str, Any], pair: list[dict[str, Any]]) -> None:
    full = "ArlError: the disk is full: free some"
    broken = alone["faults"][3]
    assert "episodes are not usable" in broken
    assert pair[0]["faults"] == [
        full,
        "ArlError: process 1 failed with ZeroDivisionError: by 0",
        full,
        broken,
        "[0, 1]",
    ]
    assert pair[1]["faults"] == [full, "ZeroDivisionError: by 0", full, broken, "[0, 1]"]


def test_alone_nobody_is_asked() -> None:
    # without a process group every question to others would raise
    assert ALONE.gather(lambda: 3) == [3]
    assert ALONE.divide([1, 5, 2], lambda numbers: [10 * number for number in numbers]) == [0, 10, 20]
    with pytest.raises(ZeroDivisionError):
        ALONE.gather(lambda: 1 // 0)


def test_the_heaviest_items_choose_the_lightest_part_first() -> None:
    # 7 | 5, then 4 to the 5, 3 to the 7, 1 to the 9 of the second, whose number is lower than that of the first's 10
    assert shares([1, 7, 3, 5, 4], 2) == [[1, 2], [0, 3, 4]]
    assert shares([1, 1, 1, 1, 1], 2) == [[0, 2, 4], [1, 3]]
    assert shares([], 3) == [[], [], []]


@given(st.lists(st.integers(1, 1000)), st.integers(1, 9))
def test_shares_hold_each_item_once_and_differ_by_no_more_than_one_item(weights: list[int], parts: int) -> None:
    found = shares(weights, parts)
    assert sorted(item for share in found for item in share) == list(range(len(weights)))
    loads = [sum(weights[item] for item in share) for share in found]
    assert max(loads) - min(loads) <= max(weights, default=0)


@pytest.mark.parametrize("strategy", [FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy])
def test_a_strategy_that_cuts_weights_up_is_refused_with_what_to_use_instead(strategy: type[Strategy]) -> None:
    unmade = strategy.__new__(strategy)  # DeepSpeed's would ask for its library
    with pytest.raises(ArlError, match=rf"{strategy.__name__} .* use --trainer.strategy ddp"):
        Crew.of(SimpleNamespace(strategy=unmade, global_rank=0, world_size=2))


def test_a_crew_is_the_trainers_processes() -> None:
    assert Crew.of(SimpleNamespace(strategy=DDPStrategy(), global_rank=2, world_size=4)) == Crew(2, 4)
