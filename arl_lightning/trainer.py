"""Lightning's Trainer with one verb more: `export`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from arl_lightning.modules.policy_module import PolicyModule
from arl_lightning.types import ArlError


class ArlTrainer(Trainer):
    """Lightning's Trainer that can also write what was trained."""

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
            (Path(output) / "drift.json").write_text(json.dumps(asdict(drift), indent=2) + "\n")
            print(
                f"merged in {drift.dtype}: KL to the adapter on its base is {drift.mean_kl_nats:.2g} nats a token on "
                f"average, {drift.max_kl_nats:.2g} at most, over {drift.positions} positions of fixed prompts"
            )
        print(f"wrote {output}")
