"""The README.md of an exported model: what it started from, by which recipe it was trained, how it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from arl_lightning.modules.adapters import TRAINED, is_adapted

PACKAGES = ("arl-lightning", "torch", "transformers", "peft", "bitsandbytes", "lightning")
EXCERPT = ("seed_everything", "model", "data")
"""What of a run's config.yaml stands in the card."""

_CARD = """---
library_name: {library}
pipeline_tag: text-generation
tags: [arl-lightning, agent]
---

# {title}

{what}

```python
{code}
```

## Recipe

| part | value |
|---|---|
{recipe}

## Versions

{versions}
{configuration}"""


def write_card(folder: Path, model: Any, base: str, recipe: Mapping[str, str], config_file: Path | None) -> None:
    """Writes `folder/README.md`, over the one that peft leaves there.

    Args:
        folder: where the model was exported to.
        model: the exported model, from which the adapter's settings are read.
        base: folder or hub id of the model that the training began with.
        recipe: what was trained how, by part.
        config_file: the run's config.yaml; it need not exist.
    """
    adapter = model.peft_config[TRAINED] if is_adapted(model) else None
    settings = {} if adapter is None else _settings(adapter)
    (folder / "README.md").write_text(
        _CARD.format(
            library="transformers" if adapter is None else "peft",
            title=folder.resolve().name,
            what=f"A language-model agent, trained with arl-lightning from `{base}`.",
            code=_code(base, adapter is not None),
            recipe="\n".join(f"| {part} | {value} |" for part, value in {**recipe, **settings}.items()),
            versions=", ".join(f"{package} {version(package)}" for package in PACKAGES),
            configuration=_excerpt(config_file),
        ),
        encoding="utf-8",
    )


def _settings(adapter: Any) -> dict[str, str]:
    targets = adapter.target_modules
    return {
        "LoRA": f"r {adapter.r}, alpha {adapter.lora_alpha:g}, dropout {adapter.lora_dropout:g}",
        "LoRA variant": ", ".join(n for n, on in (("rsLoRA", adapter.use_rslora), ("DoRA", adapter.use_dora)) if on)
        or "plain",
        "LoRA layers": targets if isinstance(targets, str) else ", ".join(sorted(targets)),
    }


def _code(base: str, adapted: bool) -> str:
    lines = [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER")',
    ]
    if not adapted:
        return "\n".join([*lines, 'model = AutoModelForCausalLM.from_pretrained("FOLDER")'])
    base_line = f"base = AutoModelForCausalLM.from_pretrained({base!r})"
    return "\n".join(
        ["from peft import PeftModel", *lines, base_line, 'model = PeftModel.from_pretrained(base, "FOLDER")']
    )


def _excerpt(config_file: Path | None) -> str:
    if config_file is None or not config_file.is_file():
        return ""
    config = yaml.safe_load(config_file.read_text(encoding="utf-8"))
    kept = {name: config[name] for name in EXCERPT if name in config}
    return f"\n## Configuration\n\n```yaml\n{yaml.safe_dump(kept, sort_keys=False)}```\n"
