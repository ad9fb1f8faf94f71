"""A callback that notes the bytes of a policy's frozen base: `base_watch.BaseWatch`."""

from __future__ import annotations

import hashlib
from typing import ClassVar

import torch
from lightning.pytorch import Callback, LightningModule, Trainer


class BaseWatch(Callback):
    """Notes a hash of all but the adapter when training starts and when it ends."""

    seen: ClassVar[list[str]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seen.append(base_hash(pl_module))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seen.append(base_hash(pl_module))


def base_hash(module: LightningModule) -> str:
    # the module's own state has the trained weights only
    tensors = [*module.named_parameters(), *module.named_buffers()]
    digest = hashlib.sha256()
    for _, tensor in sorted((name, tensor) for name, tensor in tensors if "lora_" not in name):
        digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
