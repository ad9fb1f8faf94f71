"""The command `arl`: LightningCLI's verbs, `export`, and errors as one sentence."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException

from arl_lightning.modules.policy_module import PolicyModule
from arl_lightning.types import ArlError


@dataclass(frozen=True)
class NamedCallbacks:
    """Callbacks in named slots: a later file or `--callbacks.NAME` changes one, `null` switches it off.

    Lists in YAML are replaced whole, so a slot is what can be ablated without touching the others. More callbacks go
    into `trainer.callbacks`.

    Args:
        progress: display of the run.
        checkpoint: when checkpoints are written.
        filtering: gate that decides which groups stay.
        kl_monitor: measures of drift.
        collapse_warning: warning of a coming collapse.
        transcripts: episodes to read.
        export: the trained model in Hugging Face format.
    """

    progress: Callback | None = None
    checkpoint: Callback | None = None
    filtering: Callback | None = None
    kl_monitor: Callback | None = None
    collapse_warning: Callback | None = None
    transcripts: Callback | None = None
    export: Callback | None = None

    def chosen(self) -> list[Callback]:
        """The filled slots, in order."""
        return [callback for callback in vars(self).values() if callback is not None]


class ArlTrainer(Trainer):
    """Lightning's Trainer with one verb more."""

    def export(
        self,
        model: LightningModule,
        output: str,
        datamodule: LightningDataModule | None = None,
        ckpt_path: str | None = None,
    ) -> None:
        """Writes the trained policy in Hugging Face format.

        Args:
            model: module that holds the policy.
            output: folder to write.
            datamodule: not used; every verb is given one.
            ckpt_path: checkpoint of the trained weights; without one the start is written.
        """
        if not isinstance(model, PolicyModule):
            raise ArlError(f"{type(model).__name__} holds no policy to export")
        model.configure_model()
        if ckpt_path is not None:
            checkpoint = torch.load(ckpt_path, map_location="cpu", weights_only=True)
            model.on_load_checkpoint(checkpoint)
            model.load_state_dict(checkpoint["state_dict"], strict=False)
        model.export(Path(output))
        print(f"wrote {output}")


class ArlParser(LightningArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raises ArlError with the message on one line; `arl VERB --help` has the rest."""
        lines = [line.strip(" -") for line in str(message).splitlines() if line.strip()]
        raise ArlError(" ".join(lines)) from ex


class ArlCLI(LightningCLI):
    """LightningCLI with callbacks in named slots, one run one folder, and a command line that checkpoints cannot override."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Lightning's verbs and `export`."""
        return {**LightningCLI.subcommands(), "export": {"model", "datamodule"}}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Named callbacks, and the one seed for every draw."""
        parser.add_argument("--callbacks", type=NamedCallbacks, default=NamedCallbacks())
        parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=int)

    def _parse_ckpt_path(self) -> None:
        """Refuses an unreadable checkpoint early; its hyper-parameters never override the command line."""
        path = self.config[self.config.subcommand].get("ckpt_path")
        if not path or path in ("last", "best", "hpc", "registry"):
            return
        if not Path(path).is_file():
            raise ArlError(f"there is no checkpoint {path!r}")
        try:
            torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except (RuntimeError, EOFError, OSError, KeyError, pickle.UnpicklingError) as error:
            raise ArlError(f"{path!r} is not a readable checkpoint: it is damaged or was not written by a run") from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """A trainer whose TensorBoard log and checkpoints lie in `trainer.default_root_dir`."""
        config = {**self._get(self.config_init, "trainer", default={}), **kwargs}
        root = config["default_root_dir"] or "runs/latest"
        config["default_root_dir"] = root
        if config["logger"] is None:
            config["logger"] = TensorBoardLogger(save_dir=root, name="", version="") if self.subcommand == "fit" else False
        named = self._get(self.config_init, "callbacks").chosen()
        return self._instantiate_trainer(config, named)

    def before_fit(self) -> None:
        """Refuses a folder that cannot be written, and one that holds another run's checkpoints."""
        root = Path(self.trainer.default_root_dir)
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root):
                pass
        except OSError as error:
            raise ArlError(f"the output folder {str(root)!r} cannot be written: {error.strerror}") from error
        writes = [cb for cb in self.trainer.callbacks if isinstance(cb, ModelCheckpoint)]  # type: ignore[attr-defined]
        resumes = self._get(self.config, "ckpt_path")
        if writes and not resumes and any((root / "checkpoints").glob("*.ckpt")):
            raise ArlError(
                f"{str(root)!r} already holds a run: continue it with --ckpt_path last, or choose another "
                "--trainer.default_root_dir"
            )


_NOISE = (
    ".*does not have many workers.*",  # play needs the weights of this process
    ".*exists and is not empty.*",  # a resumed run
    r".*module\(s\) in eval mode.*",  # the reference is meant to be
    ".*LeafSpec.*is deprecated.*",
)


def _quiet() -> None:
    """Silences advice that is not for this program's user."""
    for message in _NOISE:
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(lambda record: "Tip:" not in record.msg)


def main(args: Sequence[str] | None = None) -> None:
    """Runs `arl`; a fault that the user can mend is one sentence on stderr and exit code 1.

    With `ARL_TRACEBACK=1` in the environment the traceback is shown as well.
    """
    _quiet()
    try:
        ArlCLI(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            trainer_class=ArlTrainer,
            parser_class=ArlParser,
            seed_everything_default=0,
            save_config_kwargs={"overwrite": True},
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            args=None if args is None else list(args),
        )
    except SIGTERMException:
        print("arl: stopped by SIGTERM; continue with --ckpt_path last", file=sys.stderr)
        sys.exit(143)
    except (ArlError, MisconfigurationException, OSError) as error:
        if os.environ.get("ARL_TRACEBACK"):
            raise
        print(f"arl: {error}", file=sys.stderr)
        sys.exit(1)
