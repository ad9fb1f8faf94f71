"""What a user can get wrong is answered by one sentence that says what to do, without a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from gymnasium.envs.registration import register, registry
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from arl_lightning.cli import main
from arl_lightning.envs.sokoban import SokobanEnv
from arl_lightning.modules.tiny_model import TinyModel

if TYPE_CHECKING:
    from tests.cli.conftest import SmallRun

Refusal = Callable[[list[str]], str]

FORGETFUL_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' or loop.last %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class BreaksInReset(SokobanEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        raise RuntimeError("the map is missing")


class BreaksInStep(SokobanEnv):
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        raise RuntimeError("the door is stuck")


if "tests/BreaksInReset-v0" not in registry:
    register(id="tests/BreaksInReset-v0", entry_point=lambda **options: BreaksInReset(**options))
    register(id="tests/BreaksInStep-v0", entry_point=lambda **options: BreaksInStep(**options))


class FrozenModel:
    """A tiny model of which nothing may be trained."""

    def load(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        model, tokenizer = TinyModel(max_context=128).load()
        model.requires_grad_(False)
        return model, tokenizer


@pytest.fixture(scope="module")
def finished(small_run: SmallRun, runs: Path) -> Path:
    """Folder of a run of one epoch."""
    main(small_run("fit", "bad_input/finished", "--trainer.max_epochs", "1"))
    return runs / "bad_input" / "finished"


def test_a_missing_config_file(small_run: SmallRun, refusal: Refusal) -> None:
    sentence = refusal(small_run("fit", "bad_input/x", "--config", "configs/methods/sampoo.yaml"))
    assert "File does not exist" in sentence
    assert "configs/methods/sampoo.yaml" in sentence


def test_no_method(small_run: SmallRun, refusal: Refusal) -> None:
    command = small_run("fit", "bad_input/x")
    method = next(index for index, word in enumerate(command) if "methods" in word)
    sentence = refusal(command[: method - 1] + command[method + 1 :])
    assert "required: objective.surrogate, objective.aggregation, objective.advantage" in sentence
    assert sentence.endswith("is a --config file missing?")


def test_a_class_that_does_not_exist(small_run: SmallRun, refusal: Refusal, tmp_path: Path) -> None:
    path = "arl_lightning.modules.surrogates.TokenClop"
    sentence = refusal(small_run("fit", "bad_input/x", "--model.objective.surrogate", path))
    assert path in sentence
    overlay = tmp_path / "typo.yaml"
    overlay.write_text(f"model: {{init_args: {{objective: {{surrogate: {{class_path: {path}}}}}}}}}\n")
    sentence = refusal(small_run("fit", "bad_input/x", "--config", str(overlay)))
    assert "has no attribute 'TokenClop'" in sentence


def test_a_class_of_the_wrong_kind(small_run: SmallRun, refusal: Refusal) -> None:
    path = "arl_lightning.modules.masks.SequenceMask"
    sentence = refusal(small_run("fit", "bad_input/x", "--model.objective.surrogate", path))
    assert f"{path} does not implement protocol Surrogate" in sentence


def test_a_value_that_the_class_refuses(small_run: SmallRun, refusal: Refusal) -> None:
    sentence = refusal(small_run("fit", "bad_input/x", "--callbacks.filtering.max_attempts", "0"))
    assert "max_attempts" in sentence


def test_a_missing_model_folder(small_run: SmallRun, refusal: Refusal) -> None:
    sentence = refusal(small_run("fit", "bad_input/x", "--model.policy.pretrained", "runs/no/model"))
    assert "no model at 'runs/no/model': give a folder that holds config.json" in sentence


def test_a_template_that_forgets_earlier_answers(
    small_run: SmallRun, tiny_clone: Path, tmp_path: Path, refusal: Refusal
) -> None:
    model = shutil.copytree(tiny_clone, tmp_path / "model")
    (model / "chat_template.jinja").write_text(FORGETFUL_TEMPLATE)
    context = ("--data.task.context", "arl_lightning.datamodules.conversation.FullContext")
    sentence = refusal(small_run("fit", "bad_input/template", "--model.policy.pretrained", str(model), *context))
    assert str(model) in sentence
    assert "use `WindowContext`, or a template that keeps earlier turns" in sentence


@pytest.mark.parametrize(
    ("env_id", "reason"),
    [("tests/BreaksInReset-v0", "the map is missing"), ("tests/BreaksInStep-v0", "the door is stuck")],
)
def test_an_environment_that_raises(env_id: str, reason: str, small_run: SmallRun, refusal: Refusal) -> None:
    sentence = refusal(small_run("fit", f"bad_input/{env_id}", "--data.task.env_id", env_id))
    assert "48 of 48" in sentence or "16 of 16" in sentence
    assert f"RuntimeError: {reason}" in sentence


def test_an_unknown_environment(small_run: SmallRun, refusal: Refusal) -> None:
    assert "'tests/Nowhere-v0' cannot be made" in refusal(
        small_run("fit", "bad_input/x", "--data.task.env_id", "tests/Nowhere-v0")
    )


def test_an_output_folder_that_cannot_be_written(small_run: SmallRun, refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sentence = refusal(small_run("fit", "x", "--trainer.default_root_dir", str(tmp_path / "file" / "run")))
    assert sentence == f"the output folder '{tmp_path}/file/run' cannot be written: Not a directory"


def test_an_output_folder_that_holds_a_run(small_run: SmallRun, finished: Path, refusal: Refusal) -> None:
    sentence = refusal(small_run("fit", "bad_input/finished"))
    assert sentence == (
        f"{str(finished)!r} already holds a run: continue it with --ckpt_path last, or choose another "
        "--trainer.default_root_dir"
    )


def test_zero_trainable_parameters(small_run: SmallRun, refusal: Refusal) -> None:
    command = small_run("fit", "bad_input/frozen")
    place = command.index("--model.policy.pretrained")
    frozen = ["--model.policy", f"{__name__}.FrozenModel"]
    assert "zero trainable parameters" in refusal([*command[:place], *command[place + 2 :], *frozen])


def test_a_learning_rate_of_zero(small_run: SmallRun, refusal: Refusal) -> None:
    sentence = refusal(small_run("fit", "bad_input/still", "--model.optimizer.lr", "0"))
    assert "the first optimiser step changed no weight: is the learning rate 0" in sentence


@pytest.mark.parametrize("verb", ["fit", "validate", "test", "export"])
def test_a_missing_checkpoint(verb: str, small_run: SmallRun, refusal: Refusal) -> None:
    output = ["--output", "x"] if verb == "export" else []
    sentence = refusal([*small_run(verb, "bad_input/nothing", "--ckpt_path", "no.ckpt"), *output])
    assert sentence == "there is no checkpoint 'no.ckpt': give a file, or `last` for the newest of the run's folder"
    sentence = refusal([*small_run(verb, "bad_input/nothing", "--ckpt_path", "last"), *output])
    assert "bad_input/nothing' holds no checkpoint: start without --ckpt_path, or name the file" in sentence


@pytest.mark.parametrize("fault", ["cut", "text", "empty", "other"])
def test_a_damaged_checkpoint(
    fault: str, small_run: SmallRun, finished: Path, tmp_path: Path, refusal: Refusal
) -> None:
    whole = (finished / "checkpoints" / "last.ckpt").read_bytes()
    path = tmp_path / "bad.ckpt"
    path.write_bytes({"cut": whole[: len(whole) // 2], "text": b"not a checkpoint", "empty": b"", "other": b""}[fault])
    if fault == "other":
        torch.save({"weights": torch.zeros(2)}, path)
    sentence = refusal(small_run("fit", "bad_input/damaged", "--ckpt_path", str(path)))
    assert sentence == (
        f"{str(path)!r} is damaged or no run's checkpoint: take an older one, or start without --ckpt_path"
    )


def test_a_checkpoint_of_another_model(small_run: SmallRun, finished: Path, tmp_path: Path, refusal: Refusal) -> None:
    other = tmp_path / "other"
    model, tokenizer = TinyModel(hidden_size=16, layers=1, heads=2, max_context=128).load()
    model.save_pretrained(other)
    tokenizer.save_pretrained(other)
    options = ("--model.policy.pretrained", str(other), "--ckpt_path", str(finished / "checkpoints" / "last.ckpt"))
    sentence = refusal(small_run("fit", "bad_input/other", *options))
    assert "this checkpoint is of another model: 'policy.model.model.embed_tokens.weight' is [" in sentence


def test_validation_leaves_numbers_for_programs(small_run: SmallRun, finished: Path) -> None:
    main(small_run("validate", "bad_input/finished", "--ckpt_path", "last"))
    assert 0 <= json.loads((finished / "validate.json").read_text())["val/success_rate"] <= 1
