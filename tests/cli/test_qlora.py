"""QLoRA by the command line: runs, resumes to the bit, leaves in peft's format, and starts the next run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from arl_lightning.cli import main
from arl_lightning.modules.pretrained import PretrainedModel

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome, SmallRun

CONFIGS = Path(__file__).parents[2] / "configs"
PRESETS = sorted((CONFIGS / "hardware").glob("gpu_*gb.yaml"))
Read = Callable[[str], "Outcome"]
Parse = Callable[[list[str]], dict[str, Any]]

NF4 = ("--model.policy.quantization", '{"compute_dtype": "float32"}')
LORA = ("--model.policy.lora.r", "8")
QLORA = (*NF4, *LORA, "--model.policy.gradient_checkpointing", "true")
SHORT = ("--trainer.limit_val_batches", "0")
BF16 = ("--model.policy.quantization", "{}", *LORA, "--trainer.precision", "bf16-mixed")


@pytest.fixture(scope="module")
def fitted(small_run: SmallRun, outcome: Read) -> Outcome:
    """Two epochs of QLoRA without a break."""
    main(small_run("fit", "qlora/whole", *QLORA, *SHORT, "--trainer.max_epochs", "2"))
    return outcome("qlora/whole")


def finite(left: Outcome) -> bool:
    return all(math.isfinite(value) for name, series in left.metrics.items() if "train/" in name for _, value in series)


def test_a_run_trains_the_adapter_alone_and_begins_at_its_reference(fitted: Outcome) -> None:
    assert len(fitted.weights) == 7 * 2  # one layer's linear layers, A and B
    assert all("lora_" in name for name in fitted.weights)
    assert all(bool(weight.any()) for name, weight in fitted.weights.items() if "lora_B" in name)
    assert finite(fitted)
    assert fitted.metrics["train/ratio/first_error"][0][1] < 1e-5


def test_a_resumed_run_ends_where_the_unbroken_one_does_to_the_bit(
    small_run: SmallRun, outcome: Read, fitted: Outcome
) -> None:
    main(small_run("fit", "qlora/parts", *QLORA, *SHORT, "--trainer.max_epochs", "1"))
    main(small_run("fit", "qlora/parts", *QLORA, *SHORT, "--trainer.max_epochs", "2", "--ckpt_path", "last"))
    parts = outcome("qlora/parts")
    assert parts.weights.keys() == fitted.weights.keys()
    assert all(torch.equal(parts.weights[name], weight) for name, weight in fitted.weights.items())
    assert parts.metrics == fitted.metrics
    assert len(parts.metrics["train/loss"]) == 2


@torch.no_grad()
def logits(model: Any, ids: Tensor) -> Tensor:
    answer: Tensor = model.eval()(input_ids=ids).logits
    return answer


def test_an_exported_adapter_is_the_same_to_plain_peft_and_carries_its_recipe(
    small_run: SmallRun, runs: Path, tiny_clone: Path, fitted: Outcome
) -> None:
    folder = runs / "qlora" / "adapter"
    main(small_run("export", "qlora/whole", *QLORA, "--ckpt_path", "last", "--output", str(folder)))
    base: Any = AutoModelForCausalLM.from_pretrained(tiny_clone)
    plain = PeftModel.from_pretrained(base, str(folder))
    for name, weight in fitted.weights.items():
        assert torch.equal(plain.get_parameter(name.removeprefix("policy.model.")), weight)
    ids = torch.tensor([AutoTokenizer.from_pretrained(folder).encode("######\n#P_X_#<action>up</action>")])
    ours, _ = PretrainedModel(str(folder)).load()
    assert float((logits(ours, ids) - logits(plain, ids)).abs().max()) == 0
    card = (folder / "README.md").read_text()
    assert "| surrogate | SequenceClip |" in card
    assert f"from `{tiny_clone}`" in card
    assert "| LoRA | r 8, alpha 32, dropout 0 |" in card
    excerpt = yaml.safe_load(card.rpartition("```yaml\n")[2].removesuffix("```\n"))
    assert excerpt["model"]["init_args"]["policy"]["init_args"]["lora"]["r"] == 8


def test_fit_leaves_the_adapter_too(runs: Path, fitted: Outcome) -> None:
    folder = runs / "qlora" / "whole" / "model"
    model, _ = PretrainedModel(str(folder)).load()
    for name, weight in fitted.weights.items():
        assert torch.equal(model.get_parameter(name.removeprefix("policy.model.")), weight)
    assert "## Configuration" in (folder / "README.md").read_text()


def test_a_merged_export_is_a_whole_model_that_plays(
    small_run: SmallRun, runs: Path, fitted: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = runs / "qlora" / "merged"
    export = ("--ckpt_path", "last", "--output", str(folder), "--merge", "true")
    main(small_run("export", "qlora/whole", *QLORA, *export))
    assert "nats a token on average" in capsys.readouterr().out
    drift = json.loads((folder / "drift.json").read_text())
    assert drift["dtype"] == "float32"
    assert drift["max_kl_nats"] < 1e-8
    main(small_run("validate", "qlora/merged_run", "--model.policy.pretrained", str(folder)))
    by_merged = json.loads((runs / "qlora" / "merged_run" / "validate.json").read_text())
    main(small_run("validate", "qlora/whole", *QLORA, "--ckpt_path", "last"))
    assert json.loads((runs / "qlora" / "whole" / "validate.json").read_text()) == by_merged


def test_an_adapter_is_the_start_of_the_next_run_and_its_reference(
    small_run: SmallRun, runs: Path, outcome: Read, fitted: Outcome
) -> None:
    start = runs / "qlora" / "whole" / "model"
    options = ("--model.policy.pretrained", str(start), *NF4, *SHORT, "--trainer.max_epochs")
    main(small_run("fit", "qlora/next", *options, "2"))
    went_on = outcome("qlora/next")
    assert went_on.weights.keys() == fitted.weights.keys()  # the reference's adapter is in no checkpoint
    assert not any(torch.equal(went_on.weights[name], weight) for name, weight in fitted.weights.items())
    assert finite(went_on)
    main(small_run("fit", "qlora/next_parts", *options, "1"))
    main(small_run("fit", "qlora/next_parts", *options, "2", "--ckpt_path", "last"))
    resumed = outcome("qlora/next_parts")
    assert all(torch.equal(resumed.weights[name], weight) for name, weight in went_on.weights.items())
    assert resumed.metrics == went_on.metrics


def test_an_epoch_in_bfloat16(small_run: SmallRun, outcome: Read) -> None:
    # scored in other passes than trained, which bfloat16 may round apart
    main(small_run("fit", "qlora/bf16", *BF16, *SHORT, "--trainer.max_epochs", "1"))
    left = outcome("qlora/bf16")
    assert finite(left)
    assert left.metrics["train/ratio/first_error"][0][1] < 0.05
    assert all(weight.dtype == torch.float32 for weight in left.weights.values())


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("name", ["AdamW8bit", pytest.param("PagedAdamW8bit", marks=pytest.mark.slow)])
def test_an_optimiser_of_bitsandbytes_by_its_class_path(name: str, small_run: SmallRun, outcome: Read) -> None:
    folder = f"qlora/{name}"
    optimizer = ("--model.optimizer", f"bitsandbytes.optim.{name}", "--model.optimizer.lr", "1e-3")
    main(small_run("fit", folder, *QLORA, *SHORT, *optimizer, "--trainer.max_epochs", "1"))
    main(small_run("fit", folder, *QLORA, *SHORT, *optimizer, "--trainer.max_epochs", "2", "--ckpt_path", "last"))
    assert len(outcome(folder).metrics["train/loss"]) == 2
    assert finite(outcome(folder))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((*LORA, "--model.policy.lora.dropout", "0.1"), "set model.policy.lora.dropout to 0"),
        (("--model.policy.lora.target_modules", "[nowhere]"), "the base and model.policy.lora do not fit"),
        (("--model.policy.lora.adapter", "runs/none"), "no adapter at 'runs/none'"),
        (("--model.policy.lora.r", "0"), "r and alpha must be at least 1"),
        (("--model.policy.quantization", "{}"), "zero trainable parameters"),
    ],
)
def test_what_cannot_train_is_one_sentence(
    options: tuple[str, ...], sentence: str, small_run: SmallRun, refusal: Callable[[list[str]], str]
) -> None:
    assert sentence in refusal(small_run("fit", "qlora/refused", *options))


def test_a_whole_model_is_not_merged(small_run: SmallRun, refusal: Callable[[list[str]], str]) -> None:
    command = small_run("export", "qlora/refused", "--output", "never", "--merge", "true")
    assert refusal(command) == "the policy has no adapter to merge: export it without --merge"


@pytest.mark.parametrize("task", sorted((CONFIGS / "tasks").glob("*.yaml")), ids=lambda path: str(path.stem))
@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_a_preset_fits_every_task_and_takes_a_hub_id(preset: Path, task: Path, parsed: Parse) -> None:
    overlays = (CONFIGS / "base.yaml", CONFIGS / "methods" / "sampo.yaml", task, preset)
    config = parsed(
        [
            "fit",
            *(part for path in overlays for part in ("--config", str(path))),
            *("--model.policy.pretrained", "Qwen/Qwen3-4B"),
        ]
    )
    policy = config["model"]["init_args"]["policy"]
    assert policy["class_path"] == "arl_lightning.modules.pretrained.PretrainedModel"
    options = policy["init_args"]
    assert options["pretrained"] == "Qwen/Qwen3-4B"
    assert options["quantization"] == {"double_quantization": True, "compute_dtype": "bfloat16", "skip_modules": []}
    assert 16 <= options["lora"]["r"] <= 64
    assert options["lora"]["dropout"] == 0
    assert options["gradient_checkpointing"] is True
    assert config["trainer"]["precision"] == "bf16-mixed"


@pytest.mark.parametrize(
    "preset",
    [pytest.param(path, marks=[] if path.stem == "gpu_24gb" else [pytest.mark.slow], id=path.stem) for path in PRESETS],
)
def test_a_preset_alone_trains_here_but_for_its_device(preset: Path, small_run: SmallRun, outcome: Read) -> None:
    cpu = ("--trainer.accelerator", "cpu", "--trainer.max_epochs", "1", *SHORT)
    rate = ("--model.optimizer.lr", "1e-3", "--model.lr_scheduler", "null")
    main(small_run("fit", f"qlora/{preset.stem}", "--config", str(preset), *cpu, *rate))
    assert finite(outcome(f"qlora/{preset.stem}"))


def test_larger_cards_hold_more(parsed: Parse) -> None:
    sizes = [yaml.safe_load(path.read_text())["model"]["init_args"] for path in PRESETS]
    by_memory = sorted(zip((int(path.stem[4:-2]) for path in PRESETS), sizes, strict=True), key=lambda pair: pair[0])
    assert [memory for memory, _ in by_memory] == [8, 12, 16, 24]
    values = [size["tokens_per_pass"] for _, size in by_memory]
    assert values == sorted(values)


@pytest.mark.parametrize("word", ["null", "None"])
def test_the_adapter_is_switched_off_by_null(word: str, small_run: SmallRun, parsed: Parse) -> None:
    config = parsed(small_run("fit", "never", *LORA, "--model.policy.lora", word))
    assert config["model"]["init_args"]["policy"]["init_args"]["lora"] is None
