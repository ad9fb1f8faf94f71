"""The README's commands and code are true today."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from arl_lightning.cli import main
from arl_lightning.testing import check_text_env

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_every_arl_command_parses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "echo.yaml").write_text(_blocks("yaml")[0])
    commands = [line for block in _blocks("bash") for line in block.splitlines() if line.startswith("arl ")]
    assert len(commands) >= 9
    for command in commands:
        with pytest.raises(SystemExit) as stop:
            main([*shlex.split(command)[1:], "--print_config"])
        assert stop.value.code == 0
        printed = capsys.readouterr().out
        for mark, run in (
            ("sampo_short.yaml --config configs/tasks/sokoban.yaml", "sampo"),
            ("default_root_dir runs/alfworld_4b", "alfworld_4b"),
        ):
            if mark in command:  # what later commands read
                (tmp_path / "runs" / run / "checkpoints").mkdir(parents=True)
                (tmp_path / "runs" / run / "config.yaml").write_text(printed)


def test_the_environment_of_the_readme_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_clone: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (code,), (overlay,) = _blocks("python"), _blocks("yaml")
    (tmp_path / "echo.py").write_text(code)
    (tmp_path / "echo.yaml").write_text(overlay)
    (command,) = [line for line in _blocks("bash")[-1].splitlines() if "echo.yaml" in line]
    small = [f"--model.policy.pretrained={tiny_clone}", "--trainer.max_epochs=1", "--trainer.check_val_every_n_epoch=1"]
    main([*shlex.split(command)[1:], *small, "--callbacks.filtering=null", "--data.groups=2"])
    assert (tmp_path / "runs/echo/checkpoints/last.ckpt").is_file()


def test_make_targets_exist() -> None:
    targets = re.findall(r"^make (\S+)", "\n".join(_blocks("bash")), re.MULTILINE)
    assert targets == ["demo", "test"]
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_environment_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = _blocks("python")
    module = ModuleType("echo")
    monkeypatch.setitem(sys.modules, "echo", module)
    exec(compile(code, "echo.py", "exec"), module.__dict__)
    check_text_env(module.Echo)
    assert len(code.strip().splitlines()) <= 40


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / link).exists(), link
