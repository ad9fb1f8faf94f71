"""The card of an exported model says its recipe."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import yaml

from arl_lightning.modules.adapters import LoRA
from arl_lightning.modules.model_card import write_card
from arl_lightning.modules.policy import Policy

Load = Callable[..., Policy]


def card(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def rows(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\| (.+?) \| (.+?) \|$", text, re.MULTILINE))


def test_a_card_names_base_recipe_adapter_and_versions(load: Load, tmp_path: Path) -> None:
    model = load(lora=LoRA(r=8, alpha=4, rslora=True, dora=True, target_modules=["v_proj", "q_proj"])).model
    write_card(tmp_path, model, "Qwen/Qwen3-4B", {"surrogate": "TokenClip"}, None)
    text = card(tmp_path)
    front = yaml.safe_load(text.split("---")[1])
    assert front["library_name"] == "peft"
    assert "`Qwen/Qwen3-4B`" in text
    assert rows(text) == {
        "part": "value",
        "surrogate": "TokenClip",
        "LoRA": "r 8, alpha 4, dropout 0",
        "LoRA variant": "rsLoRA, DoRA",
        "LoRA layers": "q_proj, v_proj",
    }
    assert f"torch {version('torch')}" in text
    assert "## Configuration" not in text


def test_a_whole_model_is_of_transformers(load: Load, tmp_path: Path) -> None:
    write_card(tmp_path, load().model, "base", {}, None)
    assert yaml.safe_load(card(tmp_path).split("---")[1])["library_name"] == "transformers"
    assert "peft import" not in card(tmp_path)


def test_the_configuration_is_an_excerpt_of_the_runs(load: Load, tmp_path: Path) -> None:
    config = {"seed_everything": 3, "trainer": {"max_epochs": 1}, "model": {"class_path": "x", "init_args": {"a": 1}}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    write_card(tmp_path, load().model, "base", {}, tmp_path / "config.yaml")
    (block,) = re.findall(r"```yaml\n(.*?)```", card(tmp_path), re.DOTALL)
    assert yaml.safe_load(block) == {"seed_everything": 3, "model": config["model"]}


def test_the_code_of_the_card_loads_the_model(load: Load, tiny_folder: Path, tmp_path: Path) -> None:
    policy = load(lora=LoRA(r=8))
    policy.save(tmp_path)
    write_card(tmp_path, policy.model, str(tiny_folder), {}, None)
    (block,) = re.findall(r"```python\n(.*?)```", card(tmp_path), re.DOTALL)
    names: dict[str, object] = {}
    exec(block.replace("FOLDER", str(tmp_path)), names)
    assert type(names["model"]).__name__ == "PeftModelForCausalLM"
