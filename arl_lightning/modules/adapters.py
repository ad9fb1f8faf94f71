"""Low-rank adapters on a frozen base: fresh or continued, copied for reference, saved in peft's format."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.nn import Parameter
from transformers import PreTrainedModel

from arl_lightning.modules.faults import first_line
from arl_lightning.types import ArlError

if TYPE_CHECKING:
    from peft import PeftModel

TRAINED, REFERENCE = "default", "reference"
"""Names of the two adapters that a policy may carry; the first is peft's own for an only one."""

CONFIG_FILE = "adapter_config.json"


@dataclass(frozen=True)
class LoRA:
    """Trained low-rank updates B·A·x beside frozen linear layers; float32 whatever the base is.

    Args:
        r: rank of the update, at least 1.
        alpha: the update is scaled by alpha / r; at least 1.
        dropout: share of the update's inputs that is zeroed in training, from 0 to below 1; reinforcement refuses any
            but 0, since two passes of the same weights would differ.
        target_modules: names of the adapted layers, or `all-linear` for every linear layer but the head.
        rslora: whether the scale is alpha / √r, under which large ranks learn as fast as small ones.
        dora: whether the norm of each row of the weight is trained, too.
        adapter: folder of a peft adapter to continue from, which brings its own rank, alpha, targets and variant;
            null for a fresh one.
        seed: seed of A; B starts at 0, so that a fresh adapter changes nothing.

    Source: LoRA, arXiv:2106.09685; rsLoRA, arXiv:2312.03732; DoRA, arXiv:2402.09353
    """

    r: int = 16
    alpha: int = 32
    dropout: float = 0.0
    target_modules: str | Sequence[str] = "all-linear"
    rslora: bool = False
    dora: bool = False
    adapter: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.r < 1 or self.alpha < 1 or not 0 <= self.dropout < 1:
            raise ArlError(
                f"lora has r={self.r}, alpha={self.alpha}, dropout={self.dropout}: r and alpha must be at "
                "least 1, and dropout from 0 to less than 1"
            )


def is_adapted(model: nn.Module) -> bool:
    """True when the model carries adapters of peft."""
    return hasattr(model, "peft_config")


def holds_adapter(folder: Path) -> bool:
    """True when `folder` is a peft adapter's."""
    return (folder / CONFIG_FILE).is_file()


def base_of(folder: Path) -> str:
    """The folder or hub id of the base that the adapter in `folder` belongs to.

    Raises:
        ArlError: the adapter does not say.
    """
    named = _read_config(folder).base_model_name_or_path
    if not named:
        raise ArlError(
            f"the adapter {str(folder)!r} does not name its base: set model.policy.pretrained to the base and "
            "model.policy.lora.adapter to this folder"
        )
    return str(named)


def adapt(model: PreTrainedModel, lora: LoRA) -> PeftModel:
    """`model` frozen, with a fresh adapter or the one in `lora.adapter`, trainable.

    Raises:
        ArlError: the adapter does not fit the model, or its folder holds none.
    """
    from peft import LoraConfig, PeftModel, get_peft_model

    where = "the base" if lora.adapter is None else f"the adapter {lora.adapter!r}"
    try:
        with own_draws(lora.seed):
            if lora.adapter is not None:
                config = _read_config(Path(lora.adapter).expanduser())
                config.lora_dropout = lora.dropout
                folder = str(Path(lora.adapter).expanduser())
                adapted = PeftModel.from_pretrained(model, folder, is_trainable=True, config=config)
                _check_complete(adapted, Path(folder))
                return adapted
            targets = lora.target_modules
            config = LoraConfig(
                task_type="CAUSAL_LM",
                r=lora.r,
                lora_alpha=lora.alpha,
                lora_dropout=lora.dropout,
                target_modules=targets if isinstance(targets, str) else list(targets),
                use_rslora=lora.rslora,
                use_dora=lora.dora,
            )
            return get_peft_model(model, config)
    except (ValueError, RuntimeError, KeyError, OSError, SafetensorError, UserWarning) as error:
        raise ArlError(f"{where} and model.policy.lora do not fit: {first_line(error)}") from error


def as_given(adapter: Path, lora: LoRA | None) -> LoRA:
    """The options under which the adapter in a folder goes on; without options it keeps its dropout."""
    if lora is not None and lora.adapter is not None:
        raise ArlError(
            f"model.policy.pretrained is the adapter {str(adapter)!r} and model.policy.lora.adapter is another: give "
            "the base as pretrained, or set the other to null"
        )
    return replace(lora or LoRA(dropout=_read_config(adapter).lora_dropout), adapter=str(adapter))


def is_identity(model: nn.Module) -> bool:
    """True when switching the adapter off changes no bit of the output: it has A and B alone, and every B is 0."""
    return all(
        ".lora_A." in name or (".lora_B." in name and not parameter.any())
        for name, parameter in _parameters_of(model, TRAINED)
    )


def refuse_dropout(model: nn.Module) -> None:
    """Raises ArlError when the adapter has dropout: the ratio of two passes would be noise, not learning."""
    dropout = model.peft_config[TRAINED].lora_dropout if is_adapted(model) else 0  # type: ignore[index,union-attr]
    if dropout > 0:
        raise ArlError(
            f"the adapter has a dropout of {dropout:g}, under which two passes of the same weights differ and no "
            "importance ratio is 1: set model.policy.lora.dropout to 0 (cloning may have it)"
        )


def refuse_mixture(folder: Path, adapter: bool) -> None:
    """Raises ArlError when an adapter is to be written to where a whole model lies, or the other way round."""
    if (folder / "config.json").is_file() if adapter else holds_adapter(folder):
        held, wanted = ("a model", "an adapter") if adapter else ("an adapter", "a model")
        raise ArlError(
            f"{str(folder)!r} holds {held}, and {wanted} beside it would be taken for it: name another folder"
        )


def adapter_layers(model: nn.Module) -> Iterator[Any]:
    """The layers that carry an adapter."""
    from peft.tuners.lora import LoraLayer

    return (module for module in model.modules() if isinstance(module, LoraLayer))


def freeze_copy(model: PeftModel) -> None:
    """Adds the trained adapter a second time as `REFERENCE`: frozen, inactive, never saved."""
    with own_draws(seed=0):
        model.add_adapter(REFERENCE, copy.deepcopy(model.peft_config[TRAINED]))
    values = dict(_parameters_of(model, TRAINED))
    with torch.no_grad():
        for name, parameter in _parameters_of(model, REFERENCE):
            parameter.copy_(values[_renamed(name, REFERENCE, TRAINED)])
    model.set_adapter(TRAINED)  # which freezes every other one


@contextmanager
def reference_active(model: PeftModel) -> Iterator[None]:
    """The frozen copy acts in place of the trained adapter."""
    model.set_adapter(REFERENCE, inference_mode=True)
    try:
        yield
    finally:
        model.set_adapter(TRAINED)


def save_adapter(model: PeftModel, folder: Path) -> None:
    """Leaves the trained adapter in `folder` as peft reads it."""
    # "auto" would ask the hub whether the vocabulary was changed
    model.save_pretrained(str(folder), selected_adapters=[TRAINED], save_embedding_layers=False)


@contextmanager
def own_draws(seed: int) -> Iterator[None]:
    """Within, peft draws from `seed` and leaves the global generator alone; its use of a deprecated name is mute."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
        warnings.filterwarnings("error", message="Found missing adapter keys")  # else they would stay fresh
        torch.default_generator.manual_seed(seed)
        yield


def _read_config(folder: Path) -> Any:
    from peft import PeftConfig

    if not holds_adapter(folder):
        raise ArlError(f"no adapter at {str(folder)!r}: give a folder that holds {CONFIG_FILE}")
    try:
        config = PeftConfig.from_pretrained(str(folder))
    except (ValueError, KeyError, TypeError) as error:
        raise ArlError(f"{CONFIG_FILE} in {str(folder)!r} cannot be read: {error}") from error
    if config.peft_type != "LORA":
        raise ArlError(f"the adapter {str(folder)!r} is of type {config.peft_type}: only LORA can be trained here")
    return config


def _check_complete(model: nn.Module, folder: Path) -> None:
    """Raises ValueError when the file holds weights for which the model has no place, which peft passes over."""
    if not (file := folder / "adapter_model.safetensors").is_file():
        return
    with safe_open(file, framework="pt") as saved:
        names = {name.removesuffix(".weight") for name in saved.keys() if "lora_" in name}  # noqa: SIM118 - no mapping
    placed = {name.replace(f".{TRAINED}", "").removesuffix(".weight") for name, _ in _parameters_of(model, TRAINED)}
    if extra := sorted(names - placed):
        raise ValueError(f"the model has no place for {extra[0]!r}")


def _parameters_of(model: nn.Module, adapter: str) -> Iterator[tuple[str, Parameter]]:
    return ((name, value) for name, value in model.named_parameters() if adapter in name.split(".") and "lora_" in name)


def _renamed(name: str, old: str, new: str) -> str:
    return ".".join(new if part == old else part for part in name.split("."))
