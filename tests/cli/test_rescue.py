"""A run whose weights are ruined saves itself: it goes back to its last healthy checkpoint, and on from there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml
from torch import Tensor

from arl_lightning.cli import main

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome, SmallRun

CLI_TESTS = Path(__file__).parent
Read = Callable[[str], "Outcome"]

ACTIONS = "arl_lightning.callbacks"
BACK = {"class_path": f"{ACTIONS}.roll_back.RollBack"}
GENTLER = [
    {"class_path": f"{ACTIONS}.gentler.LowerLearningRate", "init_args": {"factor": 0.5}},
    {"class_path": f"{ACTIONS}.gentler.RaiseKL", "init_args": {"factor": 2.0}},
    {
        "class_path": f"{ACTIONS}.gentler.SwitchOnMask",
        "init_args": {"mask": {"class_path": "arl_lightning.modules.masks.SequenceMask", "init_args": {"delta": 0.0}}},
    },
]


@pytest.fixture
def ruined(small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The command line of a run that is ruined in epoch 3, with some actions."""
    monkeypatch.syspath_prepend(CLI_TESTS)
    # the small clone answers badly from the start, so only drift is looked at, and it alone is danger
    judge = {"min_valid_ratio": None, "max_drift": 1.0, "after_epochs": 0, "min_history": 50, "window": 50}

    def command(folder: str, *options: str, actions: list[Any], spikes: int = 3) -> list[str]:
        overlay = tmp_path / f"{Path(folder).name}.yaml"
        warning = {"init_args": {**judge, "danger_votes": 2, "calm_epochs": 1, "actions": actions}}
        watching = [{"class_path": "ruinous.Spike", "init_args": {"epoch": spikes}}, {"class_path": "ruinous.Scribe"}]
        config = {
            "callbacks": {"collapse_warning": warning},
            "trainer": {"callbacks": watching, "max_epochs": 6, "limit_val_batches": 0},
        }
        overlay.write_text(yaml.safe_dump(config))
        return small_run("fit", folder, "--config", str(overlay), *options, method="grpo")

    return command


def starts(runs: Path, folder: str, epoch: int) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(runs / folder / "starts" / f"{epoch}.pt", weights_only=True)
    return found


def checkpoint(runs: Path, folder: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(runs / folder / "checkpoints" / f"{name}.ckpt", weights_only=True)
    return found


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return torch.equal(left, right) if isinstance(left, Tensor) else left == right


def test_a_ruined_run_goes_back_to_its_last_healthy_weights_and_ends_healthy(
    ruined: Callable[..., list[str]], runs: Path, outcome: Read
) -> None:
    folder = "rescue/back"
    main(ruined(folder, actions=[BACK]))
    # epoch 2 was the last healthy one: what it began with is proved, what it made of it is not
    healthy, after = starts(runs, folder, 2), starts(runs, folder, 4)
    # to the bit, weights and moments are those of then, while steps and schedule go on
    assert same(after["weights"], healthy["weights"])
    assert same(after["optimizer"], healthy["optimizer"])
    assert (healthy["step"], after["step"]) == (4, 8)  # 2 an epoch
    assert [healthy["rate"], after["rate"]] == pytest.approx([6e-4, 2e-4])  # 1e-3, over 4 epochs to a fifth
    assert not same(starts(runs, folder, 5)["weights"], healthy["weights"])  # it went on learning
    ended = outcome(folder)
    drift = dict(ended.metrics["train/approx_kl"])
    assert drift[8 - 1] > 1.0
    assert ended.metrics["train/valid_ratio"][-1][1] > 0.1
    assert [value for _, value in ended.metrics["collapse/actions"]] == [0, 0, 0, 1, 1, 1]
    assert [value for _, value in ended.metrics["collapse/level"]] == [0, 0, 0, 1, 0, 0]
    assert ended.checkpoint["callbacks"]["CollapseWarning"]["actions"] == {"RollBack": {"times": 1, "healthy_epoch": 4}}


def test_without_the_action_the_same_run_stays_ruined(
    ruined: Callable[..., list[str]], runs: Path, outcome: Read
) -> None:
    main(ruined("rescue/lost", actions=[]))
    assert not (runs / "rescue/lost/checkpoints/healthy.ckpt").exists()
    assert outcome("rescue/lost").metrics["train/valid_ratio"][-1][1] < 0.05


def test_a_run_ruined_in_its_last_epoch_ends_with_healthy_weights(ruined: Callable[..., list[str]], runs: Path) -> None:
    folder = "rescue/at_the_end"
    main(ruined(folder, "--trainer.max_epochs", "4", actions=[BACK]))
    assert same(checkpoint(runs, folder, "last")["state_dict"], checkpoint(runs, folder, "healthy")["state_dict"])


def test_a_run_that_was_never_healthy_goes_back_to_its_start(ruined: Callable[..., list[str]], runs: Path) -> None:
    folder = "rescue/too_early"
    main(ruined(folder, "--trainer.max_epochs", "2", actions=[BACK], spikes=0))
    first, second = starts(runs, folder, 0), starts(runs, folder, 1)
    assert same(second["weights"], first["weights"])
    assert first["optimizer"] == second["optimizer"] == {}
    state = checkpoint(runs, folder, "last")["callbacks"]["CollapseWarning"]
    # epoch 1 was healthy, and played what was put back at the end of epoch 0
    assert state["actions"] == {"RollBack": {"times": 1, "healthy_epoch": 0}}
    assert same(checkpoint(runs, folder, "healthy")["state_dict"], first["weights"])


def test_an_epoch_without_alarm_is_not_healthy_for_that(ruined: Callable[..., list[str]], runs: Path) -> None:
    folder = "rescue/grace"
    patient = ("--callbacks.collapse_warning.after_epochs", "2", "--trainer.max_epochs", "2")
    main(ruined(folder, *patient, actions=[BACK], spikes=1))
    assert not (runs / folder / "checkpoints" / "healthy.ckpt").exists()


def test_a_checkpoint_that_a_ruined_epoch_played_does_not_become_healthy_later(
    ruined: Callable[..., list[str]], runs: Path
) -> None:
    folder = "rescue/seldom"
    seldom = ("--callbacks.checkpoint.every_n_epochs", "2", "--trainer.max_epochs", "4")
    main(ruined(folder, *seldom, actions=[BACK], spikes=2))
    # that of epoch 1 was played in the ruined epoch 2, and of epoch 2, which the healthy epoch 3 played, there is none
    state = checkpoint(runs, folder, "last")["callbacks"]["CollapseWarning"]
    assert state["actions"] == {"RollBack": {"times": 1, "healthy_epoch": None}}
    assert not (runs / folder / "checkpoints" / "healthy.ckpt").exists()


def test_a_file_that_is_gone_is_said_and_the_run_goes_on(
    ruined: Callable[..., list[str]], runs: Path, outcome: Read
) -> None:
    folder = "rescue/gone"
    main(ruined(folder, "--trainer.max_epochs", "3", actions=[BACK]))
    (runs / folder / "checkpoints" / "healthy.ckpt").unlink()
    with pytest.warns(UserWarning, match=r"no roll-back: \S+healthy.ckpt is gone"):
        main(ruined(folder, "--trainer.max_epochs", "4", "--ckpt_path", "last", actions=[BACK]))
    assert outcome(folder).checkpoint["callbacks"]["CollapseWarning"]["actions"]["RollBack"]["times"] == 0


@pytest.mark.parametrize("stop", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_a_rescued_run_resumes_to_the_bit(
    stop: int, ruined: Callable[..., list[str]], runs: Path, outcome: Read
) -> None:
    """Interrupted before the ruin, and between the roll-back and the rest."""
    actions = [BACK, *GENTLER]
    if not (runs / "rescue/whole").exists():
        main(ruined("rescue/whole", actions=actions))
    folder = f"rescue/resumed_{stop}"
    main(ruined(folder, "--trainer.max_epochs", str(stop), actions=actions))
    main(ruined(folder, "--ckpt_path", "last", actions=actions))
    whole, resumed = outcome("rescue/whole"), outcome(folder)
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "epoch"):
        assert same(resumed.checkpoint[part], whole.checkpoint[part]), part
    warned = "CollapseWarning"
    assert resumed.checkpoint["callbacks"][warned] == whole.checkpoint["callbacks"][warned]
    done = {name: state["times"] for name, state in whole.checkpoint["callbacks"][warned]["actions"].items()}
    assert done == {"RollBack": 1, "LowerLearningRate": 1, "RaiseKL": 1, "SwitchOnMask": 1}
    assert resumed.metrics == whole.metrics
    assert dict(whole.metrics["train/mask/dropped"])[2 * 6 - 1] > 0
    assert same(
        checkpoint(runs, folder, "healthy")["state_dict"], checkpoint(runs, "rescue/whole", "healthy")["state_dict"]
    )


def test_the_shipped_guard_fits_the_shipped_methods(
    small_run: SmallRun, parsed: Callable[[list[str]], dict[str, Any]]
) -> None:
    config = parsed(small_run("fit", "never", "--config", str(CLI_TESTS.parents[1] / "configs/guards/rescue.yaml")))
    warning = config["callbacks"]["collapse_warning"]
    assert warning["class_path"] == f"{ACTIONS}.collapse_warning.CollapseWarning"
    names = [action["class_path"].rpartition(".")[2] for action in warning["init_args"]["actions"]]
    assert names == ["RollBack", "LowerLearningRate", "RaiseKL"]


def test_going_back_needs_checkpoints(ruined: Callable[..., list[str]], refusal: Callable[[list[str]], str]) -> None:
    command = ruined(
        "rescue/none", "--callbacks.checkpoint", "null", "--trainer.enable_checkpointing", "false", actions=[BACK]
    )
    assert refusal(command).startswith("RollBack goes back to a copy of the checkpoint of an epoch")
