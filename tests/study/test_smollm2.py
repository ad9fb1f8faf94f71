"""A real pretrained model learns by QLoRA on a CPU, and leaves as an adapter and as a merged model. Downloads 93 MB."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from arl_lightning.cli import main
from arl_lightning.modules.pretrained import PretrainedModel

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
RECIPE = CONFIGS / "recipes" / "smollm2_tir_math_told.yaml"
Command = Callable[..., list[str]]


@pytest.fixture(scope="module")
def smollm2() -> Path:
    pytest.importorskip("gguf")
    script = [sys.executable, str(ROOT / "benchmarks" / "pretrained" / "smollm2.py")]
    done = subprocess.run(script, cwd=ROOT, check=True, capture_output=True, text=True)
    return Path(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("smollm2")


@pytest.fixture(scope="module")
def command(runs: Path) -> Command:
    """The command line of a verb with the model in `pretrained`, into `folder`; later options win."""

    def line(verb: str, folder: str, pretrained: Path, *options: str) -> list[str]:
        start = [CONFIGS / name for name in ("base.yaml", "methods/sampo_short.yaml")]
        recipe = RECIPE
        if folder == "clone":
            start, recipe = [CONFIGS / "cloning.yaml"], RECIPE.with_stem(f"{RECIPE.stem}_clone")
        overlays = [*start, CONFIGS / "tasks/tir_math_told.yaml", CONFIGS / "hardware/cpu_qlora.yaml", recipe]
        places = ["--model.policy.pretrained", str(pretrained), "--trainer.default_root_dir", str(runs / folder)]
        return [verb, *(part for file in overlays for part in ("--config", str(file))), *places, *options]

    return line


@pytest.fixture(scope="module")
def hashes(smollm2: Path, runs: Path, command: Command) -> list[str]:
    """Hashes of the base at start and end of cloning and of reinforcement, both of which run here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent)
        watch = ("--trainer.callbacks", "[{class_path: base_watch.BaseWatch}]")
        main(command("fit", "clone", smollm2, *watch))
        main(command("fit", "sampo", runs / "clone" / "model", *watch, "--trainer.limit_val_batches", "0"))
        seen: list[str] = sys.modules["base_watch"].BaseWatch.seen
        return seen


@pytest.fixture(scope="module")
def measured(smollm2: Path, runs: Path, command: Command, hashes: list[str]) -> dict[str, dict[str, float]]:
    """What held-out play says of the model as it came, of the clone, and of the clone after SAMPO."""
    agents = {"before": smollm2, "cloned": runs / "clone" / "model", "after": runs / "sampo" / "model"}
    for agent, model in agents.items():
        main(command("validate", agent, model, "--callbacks.transcripts", "null"))
    return {agent: json.loads((runs / agent / "validate.json").read_text()) for agent in agents}


def test_format_and_success_rise_from_the_model_as_it_came_to_the_clone_to_the_trained_agent(
    measured: dict[str, dict[str, float]],
) -> None:
    before, cloned, after = (measured[agent] for agent in ("before", "cloned", "after"))
    assert before["val/valid_ratio"] < cloned["val/valid_ratio"] < after["val/valid_ratio"]
    assert before["val/reward"] < cloned["val/reward"] < after["val/reward"]
    assert before["val/success_rate_high"] < after["val/success_rate_low"]


def test_no_byte_of_the_base_changed(hashes: list[str]) -> None:
    assert len(hashes) == 4
    assert len(set(hashes)) == 1


@torch.no_grad()
def logits(model: Any, tokenizer: Any) -> Tensor:
    ids = torch.tensor([tokenizer.encode("Find the Greatest Common Divisor (GCD) of these numbers: 138, 69.")])
    answer: Tensor = model.eval()(input_ids=ids).logits
    return answer


def test_the_exported_adapter_is_the_same_to_plain_peft(
    smollm2: Path, runs: Path, command: Command, hashes: list[str]
) -> None:
    folder = runs / "adapter"
    main(command("export", "sampo", runs / "clone" / "model", "--ckpt_path", "last", "--output", str(folder)))
    base: Any = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    plain = logits(PeftModel.from_pretrained(base, str(folder)), AutoTokenizer.from_pretrained(folder))
    difference = logits(*PretrainedModel(str(folder)).load()) - plain
    assert float(difference.abs().max()) < 1e-3  # of logits up to 23: ours multiply by oneDNN on some processors


def test_the_merged_model_is_as_far_from_the_adapter_as_it_says(
    runs: Path, command: Command, hashes: list[str]
) -> None:
    folder = runs / "merged"
    export = ("--ckpt_path", "last", "--output", str(folder), "--merge", "true")
    main(command("export", "sampo", runs / "clone" / "model", *export))
    drift = json.loads((folder / "drift.json").read_text())
    assert drift["dtype"] == "bfloat16"
    assert 0 < drift["mean_kl_nats"] < 0.05
    plain: Any = AutoModelForCausalLM.from_pretrained(folder)
    assert plain.dtype == torch.bfloat16
    main(
        command("validate", "merged_run", folder, "--model.policy.lora", "null", "--model.policy.quantization", "null")
    )
    assert json.loads((runs / "merged_run" / "validate.json").read_text())["val/success_rate"] > 0.3
