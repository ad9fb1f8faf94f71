"""One optimiser step on given rows, by one process or by two; run by test_ddp.py, not a test itself."""

import sys
from functools import partial
from typing import Any, cast

import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

from arl_lightning.modules.agent_module import AgentModule
from arl_lightning.modules.aggregations import SequenceMean, SequenceSum, TokenMean
from arl_lightning.modules.estimators import GroupNormalized
from arl_lightning.modules.masks import SequenceMask
from arl_lightning.modules.objective import Objective
from arl_lightning.modules.regularizers import EntropyBonus, ReferenceKL
from arl_lightning.modules.surrogates import TokenClip
from arl_lightning.modules.tiny_model import TinyModel
from arl_lightning.protocols import Aggregation
from arl_lightning.types import TrajectoryBatch

AGGREGATIONS: dict[str, Aggregation] = {
    "TokenMean": TokenMean(),
    "SequenceMean": SequenceMean(),
    "SequenceSum": SequenceSum(8),
}
LENGTHS = (4, 9, 9, 6, 12, 5)
SHARES = ((0, 1, 2, 3), (4, 5))  # rows of each rank: unequally many, hence unequally many passes


def rows() -> TrajectoryBatch:
    """Six rows with made-up old and reference log-probs, which a random model is far from."""
    generator = torch.Generator().manual_seed(0)
    shape = (len(LENGTHS), max(LENGTHS))
    acts_NT = (torch.arange(shape[1]).expand(shape) >= 2) & (torch.arange(shape[1]) < torch.tensor(LENGTHS)[:, None])
    old_NT = (-4.6 + 0.1 * torch.randn(shape, generator=generator)) * acts_NT
    return TrajectoryBatch(
        input_ids_NT=torch.randint(5, 100, shape, generator=generator),
        lengths_N=torch.tensor(LENGTHS),
        action_mask_NT=acts_NT,
        segment_ids_NT=torch.where(acts_NT, torch.arange(len(LENGTHS))[:, None], -1),
        behavior_logprobs_NT=old_NT,
        old_logprobs_NT=old_NT,
        ref_logprobs_NT=old_NT,
        advantages_NT=torch.tensor([1.0, -1.0, 0.5, -2.0, -0.5, 1.5])[:, None] * acts_NT,
        policy_version=0,
    )


def main(output: str, aggregation: str, devices: int) -> None:
    """Leaves the weights after the step in `output`."""
    objective = Objective(
        TokenClip(),
        AGGREGATIONS[aggregation],
        GroupNormalized(),
        SequenceMask(0.01),
        ReferenceKL(0.1),
        EntropyBonus(0.1),
    )
    source = TinyModel(hidden_size=16, layers=1, heads=2, mlp_size=24, max_context=64)
    sgd = partial(torch.optim.SGD, lr=1.0)
    module = AgentModule(source, objective, sgd, gradient_clip=100.0, tokens_per_pass=20, ratio_tolerance=100.0)
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    batch = rows() if devices == 1 else rows().take(SHARES[trainer.global_rank])
    trainer.fit(module, DataLoader(cast(Any, [batch]), batch_size=None))
    if trainer.is_global_zero:
        torch.save(module.state_dict(), output)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
