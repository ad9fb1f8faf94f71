"""The house keeps its plan: import direction, links, wheel, sizes, names."""

import ast
import importlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from arl_lightning.protocols import AdvantageEstimator, GroupGate, Surrogate
from arl_lightning.testing import check_text_env, scripted_episode
from arl_lightning.types import EpisodeGroup, StopReason

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "arl_lightning"
MODULES = sorted(PACKAGE.rglob("*.py"))
LINKS = ("modules", "datamodules", "callbacks")
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
MODEL_LIBRARIES = {"transformers", "peft", "bitsandbytes"}

each_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))


def run(*command: str) -> str:
    """What the command prints; it must succeed."""
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def imported(tree: ast.Module) -> Iterator[str]:
    """The first names of all imported modules, wherever they are imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def class_paths(node: Any) -> Iterator[str]:
    """Every `class_path` of a configuration."""
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key == "class_path")
        yield from (path for value in node.values() for path in class_paths(value))
    elif isinstance(node, list):
        yield from (path for value in node for path in class_paths(value))


def test_imports_point_one_way() -> None:
    run("-c", "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))")


@each_module
def test_a_file_has_at_most_300_lines_and_says_what_it_is_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    assert ast.get_docstring(ast.parse(text))


@each_module
def test_model_libraries_are_imported_under_modules_only(path: Path) -> None:
    if PACKAGE / "modules" not in path.parents:
        assert not MODEL_LIBRARIES & set(imported(ast.parse(path.read_text(encoding="utf-8"))))


def test_init_files_hold_a_docstring_only() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        assert len(body) == 1, path
        assert isinstance(body[0], ast.Expr), path


def test_importing_the_package_imports_no_torch() -> None:
    assert run("-c", "import sys, arl_lightning; print('torch' in sys.modules)") == "False\n"


@pytest.mark.parametrize("name", LINKS)
def test_root_links_point_into_the_package(name: str) -> None:
    assert (ROOT / name).is_symlink()
    assert os.readlink(ROOT / name) == f"arl_lightning/{name}"


def test_the_wheel_holds_the_typed_package_and_nothing_beside_it(tmp_path: Path) -> None:
    run("-c", f"from hatchling.build import build_wheel; build_wheel({str(tmp_path)!r})")
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"arl_lightning", "arl_lightning-0.1.0.dist-info"}
    assert "arl_lightning/py.typed" in names
    assert {name for name in names if name.endswith(".py")} == {str(path.relative_to(ROOT)) for path in MODULES}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(ROOT / "configs")))
def test_configs_name_classes_that_exist_by_their_one_name(path: Path) -> None:
    for class_path in class_paths(yaml.safe_load(path.read_text(encoding="utf-8"))):
        module, _, name = class_path.rpartition(".")
        assert module.partition(".")[0] in {"arl_lightning", "lightning", "torch"}, class_path
        assert isinstance(getattr(importlib.import_module(module), name), type), class_path


def test_no_test_folder_is_a_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


@pytest.fixture(scope="module")
def examples() -> dict[str, Any]:
    """The classes of CONTRIBUTING.md's code."""
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL):
        exec(code, names)
    return names


def test_the_contributed_surrogate_computes(examples: dict[str, Any]) -> None:
    surrogate: Surrogate = examples["Unclipped"]()
    old_NT, new_NT = torch.tensor([[0.0, -1.0]]), torch.tensor([[-9.0, -1.01]])
    found = surrogate.compute(new_NT, old_NT, torch.tensor([[2.0, 2.0]]), torch.tensor([[-1, 0]]))
    assert found.loss_NT[0].tolist() == pytest.approx([0.0, -1.980100])  # −2 · exp(−0.01)
    assert not found.clipped_NT.any()


def test_the_contributed_estimator_estimates(examples: dict[str, Any]) -> None:
    estimator: AdvantageEstimator = examples["PlainReturn"](baseline=0.5)
    broken = scripted_episode([9.0], stop=StopReason.ERROR)
    group = EpisodeGroup(0, (scripted_episode([1.0, 2.0]), broken))
    assert estimator.estimate([group], [[[0.0, 0.0], [0.0]]]) == [[[2.5, 2.5], [0.0]]]  # 1 + 2 − 0.5


def test_the_contributed_gate_is_one(examples: dict[str, Any]) -> None:
    gate = examples["HardTasks"](max_rate=0.5)
    assert isinstance(gate, GroupGate)
    won, lost = scripted_episode([1.0], success=True), scripted_episode([0.0])
    groups = [EpisodeGroup(0, (won, won)), EpisodeGroup(1, (won, lost))]
    assert [decision.keep for decision in gate.admit(groups, epoch=0)] == [False, True]


def test_the_contributed_environment_keeps_the_contract(examples: dict[str, Any]) -> None:
    check_text_env(examples["GuessEnv"], seeds=range(3))
