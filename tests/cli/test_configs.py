"""The shipped files fit together in every combination, and what a user adds to them does what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from arl_lightning.cli import main

if TYPE_CHECKING:
    from tests.cli.conftest import SmallRun

CONFIGS = Path(__file__).parents[2] / "configs"
Parse = Callable[[list[str]], dict[str, Any]]
Refusal = Callable[[list[str]], str]


def shipped(folder: str) -> list[Path]:
    return sorted((CONFIGS / folder).glob("*.yaml"))


def combinations() -> list[tuple[Path, ...]]:
    """Each method, task and hardware with the first of the others, and each recipe with what it is meant for.

    Overlays touch different keys, so that pairs show what all combinations would.
    """
    base, cloning, method = (CONFIGS / name for name in ("base.yaml", "cloning.yaml", "methods/sampo.yaml"))
    sokoban, cpu = CONFIGS / "tasks/sokoban.yaml", CONFIGS / "hardware/cpu.yaml"
    places = [*((task, cpu) for task in shipped("tasks")), *((sokoban, hardware) for hardware in shipped("hardware"))]
    chosen: list[tuple[Path, ...]] = [(base, one, sokoban, cpu) for one in shipped("methods")]
    chosen += [(*start, *place) for place in dict.fromkeys(places) for start in ((base, method), (cloning,))]
    for recipe in shipped("recipes"):
        start = (cloning,) if "clone" in recipe.stem else (base, method)
        task = max((task for task in shipped("tasks") if task.stem.removesuffix("_small") in recipe.stem), key=str)
        chosen.append((*start, task, cpu, recipe))
    return chosen


def fit_with(*paths: Path) -> list[str]:
    return ["fit", *(part for path in paths for part in ("--config", str(path)))]


@pytest.mark.parametrize("paths", combinations(), ids=lambda paths: "+".join(path.stem for path in paths))
def test_every_shipped_combination_parses(paths: tuple[Path, ...], parsed: Parse) -> None:
    command = fit_with(*paths)
    if paths[0].stem == "cloning" and "recipes" not in str(paths[-1]):
        command += ["--model.policy.pretrained", "Qwen/Qwen3-4B"]
    config = parsed(command)
    assert config["model"]["class_path"].startswith("arl_lightning.")


def check_round_trip(command: list[str], parsed: Parse, printed: Path) -> None:
    config = parsed(command)
    printed.write_text(yaml.safe_dump(config))
    assert parsed(fit_with(printed)) == config


def test_a_printed_config_alone_gives_the_same_config(small_run: SmallRun, parsed: Parse, tmp_path: Path) -> None:
    check_round_trip(small_run("fit", "never"), parsed, tmp_path / "config.yaml")


def test_a_printed_config_without_recipe_gives_the_same_config(parsed: Parse, tmp_path: Path) -> None:
    names = ("base.yaml", "methods/sampo.yaml", "tasks/sokoban.yaml", "hardware/cpu.yaml")
    check_round_trip(fit_with(*(CONFIGS / name for name in names)), parsed, tmp_path / "config.yaml")


@pytest.mark.parametrize("name", ["base.yaml", "cloning.yaml"])
def test_a_checkpoint_is_written_every_epoch(name: str) -> None:
    slot = yaml.safe_load((CONFIGS / name).read_text())["callbacks"]["checkpoint"]["init_args"]
    assert slot.get("save_top_k", 1) != 0


def test_null_removes_one_callback_and_leaves_the_others(small_run: SmallRun, parsed: Parse) -> None:
    before = parsed(small_run("fit", "never"))["callbacks"]
    after = parsed(small_run("fit", "never", "--callbacks.filtering", "null"))["callbacks"]
    assert before["filtering"] is not None
    assert after == {**before, "filtering": None}


def test_a_later_file_exchanges_one_callback_and_leaves_the_others(
    small_run: SmallRun, parsed: Parse, tmp_path: Path
) -> None:
    overlay = tmp_path / "other.yaml"
    overlay.write_text("callbacks: {collapse_warning: {class_path: lightning.pytorch.callbacks.LearningRateMonitor}}\n")
    before = parsed(small_run("fit", "never"))["callbacks"]
    after = parsed(small_run("fit", "never", "--config", str(overlay)))["callbacks"]
    assert after.pop("collapse_warning")["class_path"] == "lightning.pytorch.callbacks.LearningRateMonitor"
    del before["collapse_warning"]
    assert after == before


def test_one_argument_of_a_callback_merges(small_run: SmallRun, parsed: Parse) -> None:
    before = parsed(small_run("fit", "never"))["callbacks"]["filtering"]["init_args"]
    command = small_run("fit", "never", "--callbacks.filtering.max_attempts", "5")
    assert parsed(command)["callbacks"]["filtering"]["init_args"] == {**before, "max_attempts": 5}


@pytest.mark.parametrize("slot", ["mask", "kl", "entropy"])
def test_null_empties_a_slot_of_the_objective(slot: str, small_run: SmallRun, parsed: Parse) -> None:
    before = parsed(small_run("fit", "never"))["model"]["init_args"]["objective"]
    after = parsed(small_run("fit", "never", f"--model.objective.{slot}", "null"))["model"]["init_args"]["objective"]
    assert after == {**before, slot: None}


def test_a_surrogate_is_exchanged_on_the_command_line(small_run: SmallRun, parsed: Parse) -> None:
    cispo = "arl_lightning.modules.surrogates.ClippedWeight"
    options = ("--model.objective.surrogate", cispo, "--model.objective.surrogate.high", "0.2")
    before = parsed(small_run("fit", "never"))["model"]["init_args"]["objective"]
    after = parsed(small_run("fit", "never", *options))["model"]["init_args"]["objective"]
    # an argument that both classes have stays what it was, here SAMPO's low = 0.003: whoever exchanges a class of the
    # same family names all of its arguments
    surrogate = {"class_path": cispo, "init_args": {"low": 3e-3, "high": 0.2}}
    assert after == {**before, "surrogate": surrogate}


def test_arguments_that_the_new_class_lacks_leave_with_the_old_class(small_run: SmallRun, parsed: Parse) -> None:
    gate = "arl_lightning.modules.surrogates.SoftGate"
    after = parsed(small_run("fit", "never", "--model.objective.surrogate", gate))["model"]["init_args"]["objective"]
    assert after["surrogate"] == {"class_path": gate, "init_args": {"tau_pos": 1.0, "tau_neg": 1.05}}


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("trainer.max_epoch", "trainer.max_epochs"),
        ("data.grops", "groups"),
        ("data.decoding.temprature", "temperature"),
        ("model.gradient_clp", "gradient_clip"),
        ("model.objective.surrogate.hi", "high"),
        ("model.optimizer.weight_decy", "weight_decay"),
        ("callbacks.filterin", "filtering"),
        ("callbacks.filtering.max_attemps", "max_attempts"),
    ],
)
@pytest.mark.parametrize("in_yaml", [False, True])
def test_a_misspelt_option_is_refused_by_name_with_the_one_that_was_meant(
    option: str, meant: str, in_yaml: bool, small_run: SmallRun, refusal: Refusal, tmp_path: Path
) -> None:
    command = small_run("fit", "never")
    if in_yaml:
        overlay = tmp_path / "typo.yaml"
        overlay.write_text(nested(option))
        command += ["--config", str(overlay)]
    else:
        command += [f"--{option}", "1"]
    sentence = refusal(command)
    assert option.rpartition(".")[2] in sentence
    assert "did you mean" in sentence
    assert meant in sentence.partition("did you mean")[2]


def nested(option: str) -> str:
    """The YAML that sets `option` to 1; arguments of a class lie under its `init_args`."""
    classes = {"data", "model", "model.objective.surrogate", "model.optimizer", "callbacks.filtering"}
    value: Any = 1
    keys = option.split(".")
    for depth in range(len(keys), 0, -1):
        value = {keys[depth - 1]: value}
        if ".".join(keys[: depth - 1]) in classes:
            value = {"init_args": value}
    return yaml.safe_dump(value)


@pytest.mark.parametrize("verb", ["fit", "validate", "test", "export"])
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert "--ckpt_path" in capsys.readouterr().out


def test_only_fit_leaves_a_config_and_one_without_its_checkpoint(small_run: SmallRun, tmp_path: Path) -> None:
    main(small_run("fit", str(tmp_path), "--trainer.max_epochs=1"))
    written = (tmp_path / "config.yaml").read_text()
    checkpoint = str(tmp_path / "checkpoints" / "last.ckpt")
    main(["validate", "--config", str(tmp_path / "config.yaml"), "--ckpt_path", checkpoint])
    assert (tmp_path / "config.yaml").read_text() == written
    main(["fit", "--config", str(tmp_path / "config.yaml"), "--ckpt_path", checkpoint, "--trainer.max_epochs=2"])
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["ckpt_path"] is None
