"""A command that trains, tests or exports: what may be said, and that a mistake in it is one sentence."""

from __future__ import annotations

import difflib
import json
import pickle
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger

from arl_lightning.checkpoint_io import remove_parts
from arl_lightning.trainer import ArlTrainer
from arl_lightning.types import ArlError


@dataclass(frozen=True)
class NamedCallbacks:
    """Callbacks in named slots: a later file or `--callbacks.NAME` changes one, `null` switches it off.

    Lists in YAML are replaced whole, so a slot is what can be ablated without touching the others. More callbacks go
    into `trainer.callbacks`.

    Args:
        progress: display of the run.
        checkpoint: when checkpoints are written.
        events: what happened to the run, to read afterwards.
        filtering: gate that decides which groups stay.
        difficulty: further gate, by success rate; all gates must admit a group.
        usable: further gate, against groups of cut or void episodes.
        kl_monitor: measures of drift.
        collapse_warning: warning of a coming collapse.
        transcripts: episodes to read.
        frames: episodes to look at.
        export: the trained model in Hugging Face format.
    """

    progress: Callback | None = None
    checkpoint: Callback | None = None
    events: Callback | None = None
    filtering: Callback | None = None
    difficulty: Callback | None = None
    usable: Callback | None = None
    kl_monitor: Callback | None = None
    collapse_warning: Callback | None = None
    transcripts: Callback | None = None
    frames: Callback | None = None
    export: Callback | None = None

    def chosen(self) -> list[Callback]:
        """The filled slots, in order."""
        return [callback for callback in vars(self).values() if callback is not None]


_DEFAULT_ROOT = "runs/latest"
_REASON = re.compile(
    r"Parser key \"(?P<key>.*?)\":.*Errors:\s+- (?P<reason>.*?)\s+- Expected a <class 'NoneType'>", re.DOTALL
)
_UNKNOWN = re.compile(r"(?:[Oo]ption '|unrecognized arguments: --)(?P<name>[\w.]+)")


class ArlParser(LightningArgumentParser):
    """A parser whose errors are one sentence, that takes no abbreviated options, and `null` at any depth."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)  # a misspelt option must not pass for another one
        super().__init__(*args, **kwargs)

    def parse_args(self, args: Sequence[str] | None = None, *rest: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """The parsed options; jsonargparse hands `--model.a.b null` on to the class's own parser as the text `None`."""
        if args is not None:
            args = [f"{arg[:-4]}null" if arg.startswith("--") and arg.endswith("=None") else arg for arg in args]
        return super().parse_args(args, *rest, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raises ArlError with the reason on one line and, for a misspelt option, the nearest one that exists."""
        found = _REASON.match(text := str(message))
        text = f"{found['key']}: {found['reason']}" if found else text
        sentence = " ".join(line.strip(" -") for line in text.splitlines() if line.strip())
        sentence = re.sub(r"Expected a path but \S+ either not accessible or invalid ", "", sentence)  # it is a class
        if sentence.endswith("?"):  # said by the parser of a class within
            raise ArlError(sentence) from ex
        if "arguments are required" in sentence:
            sentence += "; is a --config file missing?"
        elif (unknown := _UNKNOWN.search(sentence)) is not None:
            verbs = self._subcommands_action.choices.values() if self._subcommands_action else ()
            options = {option.lstrip("-") for parser in (self, *verbs) for option in parser._option_string_actions}
            options.discard(unknown["name"])  # another verb's
            ends = {option.rpartition(".")[2]: option for option in options}
            nearest = difflib.get_close_matches(unknown["name"].rpartition(".")[2], ends, n=1)
            sentence += f"; did you mean {ends[nearest[0]]!r}?" if nearest else "; `arl VERB --help` lists what is"
        raise ArlError(sentence) from ex


class SaveFitConfig(SaveConfigCallback):
    """Leaves `config.yaml` of a fit in the run's folder, fit to start another run from: without its checkpoint."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Writes it for `fit` only, so that a test of a run does not replace the run's own configuration."""
        if stage == "fit":
            self.config = self.config.clone()
            self.config.ckpt_path = None
            super().setup(trainer, pl_module, stage)


class ArlCLI(LightningCLI):
    """LightningCLI with callbacks in named slots, one run one folder, and options that no checkpoint overrides."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Lightning's verbs, `export` and `doctor`."""
        own = ("export", "doctor")
        return {**LightningCLI.subcommands(), **{verb: {"model", "datamodule"} for verb in own}}

    def doctor(self, **kwargs: Any) -> None:
        """Ends the program with exit code 1 when a check failed."""
        if self.trainer.doctor(**kwargs).failed:  # type: ignore[attr-defined]
            sys.exit(1)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Named callbacks, and the one seed for every draw."""
        parser.add_argument("--callbacks", type=NamedCallbacks, default=NamedCallbacks())
        parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=int)

    def _parse_ckpt_path(self) -> None:
        """Finds the checkpoint and refuses an unreadable one early; its hyper-parameters override no option."""
        options = self.config[self.config.subcommand]
        if options.get("ckpt_path") == "last":
            root = options.trainer.default_root_dir or _DEFAULT_ROOT
            written = sorted(Path(root).rglob("last*.ckpt"), key=lambda file: file.stat().st_mtime)
            if not written:
                raise ArlError(f"{str(root)!r} holds no checkpoint: start without --ckpt_path, or name the file")
            options.ckpt_path = str(written[-1])
        path = options.get("ckpt_path")
        if not path:
            return
        if not Path(path).is_file():
            raise ArlError(
                f"there is no checkpoint {path!r}: give a file, or `last` for the newest of the run's folder"
            )
        try:
            keys = set(torch.load(path, map_location="cpu", weights_only=True, mmap=True))
        except (RuntimeError, EOFError, OSError, TypeError, pickle.UnpicklingError):
            keys = set()
        if not {"state_dict", "pytorch-lightning_version"} <= keys:
            raise ArlError(
                f"{path!r} is damaged or no run's checkpoint: take an older one, or start without --ckpt_path"
            )

    def instantiate_classes(self) -> None:
        """Classes and trainer; what a class says against its own arguments is told without jsonargparse's wrapping."""
        try:
            super().instantiate_classes()
        except ValueError as error:
            cause = error.__cause__
            while cause is not None and not isinstance(cause, ArlError):
                cause = cause.__cause__
            if cause is None:
                raise
            raise cause from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """A trainer whose TensorBoard log and checkpoints lie in `trainer.default_root_dir`."""
        config = {**self._get(self.config_init, "trainer", default={}), **kwargs}
        root = config["default_root_dir"] or _DEFAULT_ROOT
        config["default_root_dir"] = root
        if config["logger"] is None:
            config["logger"] = (
                TensorBoardLogger(save_dir=root, name="", version="") if self.subcommand == "fit" else False
            )
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
        remove_parts(root / "checkpoints")

    def after_validate(self) -> None:
        """Leaves the numbers where a program can read them."""
        self._write_metrics("validate")

    def after_test(self) -> None:
        """Leaves the numbers where a program can read them."""
        self._write_metrics("test")

    def _write_metrics(self, verb: str) -> None:
        if not self.trainer.is_global_zero:
            return
        metrics = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        root = Path(self.trainer.default_root_dir)
        root.mkdir(parents=True, exist_ok=True)
        (root / f"{verb}.json").write_text(json.dumps(metrics, indent=2) + "\n")


class PlanningCLI(ArlCLI):
    """Makes all that a command names, and does not run it: on a machine without a GPU as well."""

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """A trainer on the device that is asked for, or on the CPU where there is none."""
        absent = {} if torch.cuda.is_available() else {"accelerator": "cpu"}
        return super().instantiate_trainer(**kwargs, **absent)

    def _run_subcommand(self, subcommand: str) -> None:
        """Leaves it at that."""


def command(kind: type[ArlCLI], words: Sequence[str], *callbacks: Callback) -> ArlCLI:
    """What the words name, made and, unless it only plans, run; `callbacks` are there whatever the words say."""
    return kind(
        LightningModule,
        LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        trainer_class=ArlTrainer,
        trainer_defaults={"callbacks": list(callbacks)},
        parser_class=ArlParser,
        seed_everything_default=0,
        save_config_callback=SaveFitConfig,
        save_config_kwargs={"overwrite": True},
        auto_configure_optimizers=False,
        load_from_checkpoint_support=False,
        args=list(words),
    )
