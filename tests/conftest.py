"""What tests of several folders share: one small cloned model, made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from arl_lightning.cli import main

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def tiny_clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model that answers 6x6 Sokoban in the demanded form and solves some of it."""
    root = tmp_path_factory.mktemp("clone")
    overlays = ("cloning.yaml", "tasks/sokoban.yaml", "hardware/cpu.yaml")
    configs = [*(ROOT / "configs" / name for name in overlays), ROOT / "tests/cli/small_clone.yaml"]
    options = [part for config in configs for part in ("--config", str(config))]
    main(["fit", *options, "--trainer.default_root_dir", str(root), "--trainer.logger", "false"])
    return root / "model"
