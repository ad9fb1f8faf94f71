"""What one process of a crew sees of play, run alone or as one of two; run by test_crew.py, not a test itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor, distributed

from arl_lightning.callbacks.dynamic_filtering import DynamicFiltering
from arl_lightning.datamodules.conversation import FullContext
from arl_lightning.datamodules.crew import Crew
from arl_lightning.datamodules.held_out import HeldOut
from arl_lightning.datamodules.prompting import TaggedAction
from arl_lightning.datamodules.rollout_datamodule import RolloutDataModule
from arl_lightning.modules.estimators import EMPG
from arl_lightning.testing import ScriptedPolicy, scripted_task
from arl_lightning.types import ArlError, Decoding, Rollout, Scores, TokenBatch, TrajectoryBatch

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


def main(folder: Path, rank: int) -> None:
    """Leaves what process `rank` of two saw in `folder`."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.save(everything(Crew(rank, 2)), folder / f"{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
