"""Lightning's Trainer with two verbs more: `export` and `doctor`."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from rich.console import Console

from arl_lightning.checkpoint_io import AtomicCheckpointIO
from arl_lightning.modules.policy_module import PolicyModule
from arl_lightning.study.doctor import Checkup, announce_plan, examine, prepare
from arl_lightning.study.findings import Report
from arl_lightning.study.patient import Extent
from arl_lightning.types import ArlError


class ArlTrainer(Trainer):
    """Lightning's Trainer that can also write what was trained, and look for faults before anything is."""

    def fit(self, model: LightningModule, *args: Any, **kwargs: Any) -> None:
        """Lightning's `fit`, with the memory plan in one line before it and the doctor's brief checks at its start.

        Checkpoints are written atomically, unless a plug-in says how they are.
        """
        if type(self.strategy.checkpoint_io) is TorchCheckpointIO:
            self.strategy.checkpoint_io = AtomicCheckpointIO()
        announce_plan(self, model, kwargs.get("datamodule"))
        callbacks: list[Any] = self.callbacks  # type: ignore[attr-defined]
        if not any(isinstance(callback, Checkup) for callback in callbacks):
            callbacks.insert(0, Checkup())
        super().fit(model, *args, **kwargs)

    def doctor(
        self,
        model: LightningModule,
        json: bool = False,
        turns: int = 3,
        response_tokens: int = 128,
        env_seconds: float = 60.0,
        datamodule: LightningDataModule | None = None,
        ckpt_path: str | None = None,  # noqa: ARG002 - stands in every config.yaml that `fit` leaves
        weights_only: bool | None = None,  # noqa: ARG002 - likewise
    ) -> Report:
        """Looks for the classic silent failures: plays a little, takes one step, and leaves nothing of it.

        Args:
            model: module that would be trained.
            json: whether the last line is one JSON object of all findings.
            turns: turns of an episode that is played.
            response_tokens: tokens of a response.
            env_seconds: what the check of the environment's contract may take.
            datamodule: where rows would come from.
            ckpt_path: not used; the start is what is examined.
            weights_only: not used.
        """
        if not isinstance(model, PolicyModule):
            raise ArlError(f"{type(model).__name__} holds no policy to examine")
        self.state.fn = TrainerFn.FITTING  # a module then also makes what only training needs
        console = Console()
        patient = prepare(self, model, datamodule, Extent(turns, response_tokens, env_seconds))
        if patient.plan is not None:
            console.print(patient.plan.table())
        report = examine(patient, self)
        console.print(report.table())
        if json:
            print(dumps(report.as_dict()))
        return report

    def export(
        self,
        model: LightningModule,
        output: str,
        merge: bool = False,
        datamodule: LightningDataModule | None = None,  # noqa: ARG002 - Lightning's call names it
        ckpt_path: str | None = None,
        weights_only: bool | None = None,  # noqa: ARG002 - stands in every config.yaml that `fit` leaves
    ) -> None:
        """Writes the trained policy in Hugging Face format; of a policy with an adapter, the adapter in peft's.

        Args:
            model: module that holds the policy.
            output: folder to write.
            merge: whether the adapter is merged into its base, and a model written that needs no other; `drift.json`
                then says how far it is from the adapter on its base.
            datamodule: not used; every verb is given one.
            ckpt_path: checkpoint of the trained weights; without one the start is written.
            weights_only: not used; a checkpoint is always read as weights only.
        """
        if not isinstance(model, PolicyModule):
            raise ArlError(f"{type(model).__name__} holds no policy to export")
        model.trainer = self
        model.configure_model()
        if ckpt_path is not None:
            checkpoint = torch.load(ckpt_path, map_location="cpu", weights_only=True)
            model.on_load_checkpoint(checkpoint)
            model.load_state_dict(checkpoint["state_dict"], strict=False)
        if not merge:
            model.export(Path(output))
        else:
            drift = model.export_merged(Path(output))
            (Path(output) / "drift.json").write_text(dumps(asdict(drift), indent=2) + "\n")
            print(
                f"merged in {drift.dtype}: KL to the adapter on its base is {drift.mean_kl_nats:.2g} nats a token on "
                f"average, {drift.max_kl_nats:.2g} at most, over {drift.positions} positions of fixed prompts"
            )
        print(f"wrote {output}")
