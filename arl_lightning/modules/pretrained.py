"""A pretrained model by its name: a folder, a hub id, a GGUF file or an adapter, in the precision that is asked for."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.quantization_config import QuantizationConfigMixin

from arl_lightning.modules.adapters import LoRA, adapt, as_given, base_of, holds_adapter
from arl_lightning.modules.faults import first_line
from arl_lightning.modules.onednn_linear import use_onednn
from arl_lightning.modules.quantization import NF4, Dtype, is_quantized, settle
from arl_lightning.types import ArlError


class PretrainedModel:
    """A causal LM in Hugging Face format; with `lora` the base is frozen and an adapter is what is trained.

    Args:
        pretrained: folder that holds `config.json`, a hub id such as `Qwen/Qwen3-4B`, or the folder of a peft adapter,
            which is loaded on its base and goes on from where it was.
        dtype: dtype of the weights that are not quantised; log-probs are float32 and adapters too, whatever is chosen.
        attention: attention implementation by its transformers name.
        quantization: 4-bit weights of the base; null for none.
        lora: adapter to train; null trains every weight, or the adapter that `pretrained` is.
        gguf_file: name of a GGUF file in the folder or hub repository, whose weights are unpacked to `dtype`.
        gradient_checkpointing: whether each layer's activations are computed again in the backward pass: a third more
            arithmetic, the memory of one layer. Sampling keeps its cache.
    """

    def __init__(
        self,
        pretrained: str,
        dtype: Dtype = "float32",
        attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa",
        quantization: NF4 | None = None,
        lora: LoRA | None = None,
        gguf_file: str | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        if quantization is not None and gguf_file is not None:
            raise ArlError(
                f"{gguf_file!r} cannot be quantised again: `arl export` it to a folder first and quantise that, or set "
                "model.policy.quantization to null"
            )
        self.pretrained = pretrained
        self.dtype = dtype
        self.attention = attention
        self.quantization = quantization
        self.lora = lora
        self.gguf_file = gguf_file
        self.gradient_checkpointing = gradient_checkpointing

    def load(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """The model in evaluation mode and its tokenizer.

        Raises:
            ArlError: when nothing loadable is there, or its parts do not fit together.
        """
        folder = Path(self.pretrained).expanduser()
        name, lora = self.pretrained, self.lora
        if holds_adapter(folder):
            name, lora = base_of(folder), as_given(folder, lora)
            self._check_folder(name, f"the adapter {self.pretrained!r} was trained on {name!r}, which is not there: ")
        else:
            self._check_folder(name, f"no model at {name!r}: ")
        tokenizer, model = self._load_base(name, folder)
        if lora is not None:
            model = adapt(model, lora)  # type: ignore[assignment]  # peft's wrapper hands everything on
        if self.gradient_checkpointing:
            self._checkpoint_gradients(model)
        model.eval()  # type: ignore[no-untyped-call]
        return model, tokenizer

    def _check_folder(self, name: str, fault: str) -> None:
        """Raises ArlError when `name` is meant as a folder and holds no model."""
        folder = Path(name).expanduser()
        looks_local = name.startswith((".", "/", "~")) or name.count("/") != 1
        wanted = self.gguf_file or "config.json"
        if (looks_local or folder.is_dir()) and not (folder / wanted).is_file():
            raise ArlError(
                f"{fault}give a folder that holds {wanted} (a finished cloning run leaves one in its `model` folder) "
                "or a hub id such as Qwen/Qwen3-4B"
            )

    def _load_base(self, name: str, tokenizer_folder: Path) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
        if (folder := Path(name).expanduser()).is_dir():
            name = str(folder)
        options: dict[str, Any] = {} if self.gguf_file is None else {"gguf_file": self.gguf_file}
        own_tokenizer = (tokenizer_folder / "tokenizer_config.json").is_file()
        quantization: QuantizationConfigMixin | None = None if self.quantization is None else self.quantization.config()
        if self.gguf_file is not None:
            quantization = GgufConfig(dequantize=True)
        try:
            tokenizer = (
                AutoTokenizer.from_pretrained(str(tokenizer_folder))
                if own_tokenizer
                else AutoTokenizer.from_pretrained(name, **options)
            )
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                name,
                dtype=getattr(torch, self.dtype),
                attn_implementation=self.attention,
                quantization_config=quantization,
                **options,
            )
        except (OSError, ValueError, ImportError, RuntimeError, SafetensorError, struct.error) as error:
            reason = first_line(error)
            if self.gguf_file is not None and isinstance(error, ImportError):
                reason = f"{self.gguf_file} needs a further package: pip install gguf"
            elif self.attention != "eager" and "attn_implementation" in reason:
                reason = f"it has no attention {self.attention!r}: set model.policy.attention to eager"
            raise ArlError(f"the model {self.pretrained!r} could not be loaded: {reason}") from error
        if self.gguf_file is not None:
            _forget_gguf(model)
        if is_quantized(model):  # also a model that was saved so
            settle(model)
        use_onednn(model)
        return tokenizer, model

    def _checkpoint_gradients(self, model: PreTrainedModel) -> None:
        try:
            model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        except ValueError as error:
            raise ArlError(
                f"{self.pretrained!r} has no gradient checkpointing: set model.policy.gradient_checkpointing to false"
            ) from error


def _forget_gguf(model: PreTrainedModel) -> None:
    """Plain weights that came from a GGUF file are marked as quantised, which would forbid saving them."""
    if (quantizer := getattr(model, "hf_quantizer", None)) is not None:
        quantizer.remove_quantization_config(model)
