"""The doctor finds each planted fault under its name, and nothing in a healthy setup."""

from __future__ import annotations

import copy
import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.envs.registration import register, registry
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen3Config

from arl_lightning.datamodules.conversation import Context, Dialogue, FullContext, TurnPrompt, WindowContext
from arl_lightning.datamodules.prompting import PromptTemplate, TaggedAction
from arl_lightning.datamodules.rollout_datamodule import RolloutDataModule
from arl_lightning.datamodules.task import Task
from arl_lightning.envs.sokoban import SokobanEnv
from arl_lightning.modules.adapters import LoRA
from arl_lightning.modules.agent_module import AgentModule
from arl_lightning.modules.aggregations import TokenMean
from arl_lightning.modules.estimators import GroupNormalized
from arl_lightning.modules.generation import Sampler
from arl_lightning.modules.objective import Objective
from arl_lightning.modules.policy import Policy
from arl_lightning.modules.pretrained import PretrainedModel
from arl_lightning.modules.quantization import NF4
from arl_lightning.modules.surrogates import TokenClip
from arl_lightning.protocols import ChatTokenizer, PromptFormat
from arl_lightning.study.findings import Finding, Report, Verdict
from arl_lightning.trainer import ArlTrainer
from arl_lightning.types import ArlError, Decoding, Episode, Row, TokenBatch, Turn

ROOM = {"size": 6, "boxes": 1, "min_walls": 1, "max_walls": 2, "min_solution": 1, "max_solution": 3, "max_steps": 3}
PARTS = Objective(surrogate=TokenClip(), aggregation=TokenMean(), advantage=GroupNormalized())
ADAMW = partial(torch.optim.AdamW, lr=1e-3)


def agent(source: Any, kind: type[AgentModule] = AgentModule, optimizer: Any = ADAMW) -> AgentModule:
    return kind(source, PARTS, optimizer, tokens_per_pass=2048)


def play(env_id: str = "arl/Sokoban-v0", context: Context | None = None, **decoding: Any) -> RolloutDataModule:
    task = Task(env_id, PromptTemplate(), TaggedAction(), context or WindowContext(history_window=0), ROOM, max_turns=3)
    return RolloutDataModule(task, Decoding(**{"max_new_tokens": 6, **decoding}), env_options={"split": "train"})


def new_trainer() -> ArlTrainer:
    return ArlTrainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def doctor(module: AgentModule, data: RolloutDataModule | None = None, **options: Any) -> Report:
    return new_trainer().doctor(module, datamodule=data or play(), **options)


def failures(report: Report) -> dict[str, Finding]:
    return {found.check: found for found in report.of(Verdict.FAILURE)}


def the_failure(report: Report) -> Finding:
    """The only one; its remedy says something."""
    (found,) = report.of(Verdict.FAILURE)
    assert found.remedy
    return found


def found_by(name: str, report: Report) -> Finding:
    (found,) = (finding for finding in report.findings if finding.check == name)
    return found


# healthy setups


@pytest.mark.parametrize("options", [{}, {"lora": LoRA(r=4)}, {"lora": LoRA(r=4), "quantization": NF4()}])
def test_a_healthy_setup_passes(options: dict[str, Any], tiny_clone: Path) -> None:
    report = doctor(agent(PretrainedModel(str(tiny_clone), **options)))
    assert not report.failed
    assert not report.of(Verdict.WARNING)
    assert [found.check for found in report.of(Verdict.NOT_APPLICABLE)] == ["template prefix"]
    assert len(report.of(Verdict.OK)) == 10


def test_a_healthy_conversation_that_grows_passes(tiny_clone: Path) -> None:
    report = doctor(agent(PretrainedModel(str(tiny_clone))), play(context=FullContext()))
    assert not report.failed
    assert found_by("template prefix", report).verdict is Verdict.OK
    assert "rows decodes to exactly the" in found_by("mask round trip", report).sentence


def test_shipped_generation_defaults_are_named_where_they_are_not_followed(tiny_clone: Path, tmp_path: Path) -> None:
    folder = with_generation_defaults(tiny_clone, tmp_path)
    found = found_by("neutral sampling", doctor(agent(PretrainedModel(str(folder)))))
    assert found.verdict is Verdict.OK
    assert "although the model ships top_k 1" in found.sentence


def test_a_doctor_leaves_the_random_streams_and_the_data_module_as_they_were(tiny_clone: Path) -> None:
    data, before = play(), torch.get_rng_state()
    doctor(agent(PretrainedModel(str(tiny_clone))), data)
    assert torch.equal(torch.get_rng_state(), before)
    assert (data.groups, data.group_size, data.minibatches, data.task.max_turns) == (16, 8, 8, 3)


# planted faults


class Frozen(PretrainedModel):
    """Forgets that an adapter is loaded to be trained."""

    def load(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        model, tokenizer = super().load()
        model.requires_grad_(False)
        return model, tokenizer


def test_1_nothing_to_train(tiny_clone: Path) -> None:
    found = the_failure(doctor(agent(Frozen(str(tiny_clone), lora=LoRA(r=4)))))
    assert found.check == "trainable parameters"
    assert "zero trainable parameters" in found.sentence


class HalfAdamW(torch.optim.AdamW):
    """Takes only matrices."""

    def __init__(self, params: Iterable[tuple[str, Tensor]], lr: float = 1e-3) -> None:
        super().__init__([(name, p) for name, p in params if p.dim() == 2], lr=lr)


def test_2_weights_that_the_optimiser_does_not_have(tiny_clone: Path) -> None:
    found = the_failure(doctor(agent(PretrainedModel(str(tiny_clone)), optimizer=HalfAdamW)))
    assert found.check == "trainable parameters"
    # one layer's two norms and two of queries and keys, and the last norm
    assert "5 of 13 trainable weights are not in the optimiser" in found.sentence
    assert "norm" in found.sentence


def test_3_a_step_that_changes_nothing(tiny_clone: Path) -> None:
    still = partial(torch.optim.AdamW, lr=0.0)
    found = the_failure(doctor(agent(PretrainedModel(str(tiny_clone)), optimizer=still)))
    assert found.check == "one step"
    assert "changed no weight" in found.sentence
    assert "lr" in found.remedy


class Itself(nn.Module):
    """The policy as it is, and no module of its own."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.held = (policy,)

    def logprobs(self, batch: TokenBatch) -> Tensor:
        return self.held[0].logprobs(batch)[0]


class SharedReference(AgentModule):
    """Its reference is the policy itself."""

    def configure_model(self) -> None:
        super().configure_model()
        self.reference = Itself(self.acting)


def test_4_a_reference_that_moves_with_the_policy(tiny_clone: Path) -> None:
    found = the_failure(doctor(agent(PretrainedModel(str(tiny_clone)), SharedReference)))
    assert found.check == "one step"
    assert "moved the reference" in found.sentence


def with_template(model: Path, folder: Path, change: Callable[[str], str]) -> Path:
    copied = shutil.copytree(model, folder / "model")
    file = copied / "chat_template.jinja"
    file.write_text(change(file.read_text()))
    return copied


def test_5_a_turn_that_ends_with_no_stop_token(tiny_clone: Path, tmp_path: Path) -> None:
    folder = with_template(tiny_clone, tmp_path, lambda text: text.replace("<|im_end|>", "###"))
    found = the_failure(doctor(agent(PretrainedModel(str(folder)))))
    assert found.check == "stop tokens"
    assert "ends the assistant's turn with '#'" in found.sentence
    assert "it does at '<|im_end|>'" in found.sentence


def with_generation_defaults(model: Path, folder: Path) -> Path:
    copied = shutil.copytree(model, folder / "model")
    file = copied / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "do_sample": True, "top_k": 1}))
    return copied


class FollowsDefaults(AgentModule):
    """Samples as the model's generation_config says."""

    def sampler(self, decoding: Decoding, *, grows: bool) -> Sampler:
        shipped = self.acting.model.generation_config.top_k
        return Sampler(self.acting, replace(decoding, top_k=shipped), grows=grows)


def test_6_sampling_by_shipped_defaults(tiny_clone: Path, tmp_path: Path) -> None:
    folder = with_generation_defaults(tiny_clone, tmp_path)
    report = doctor(agent(PretrainedModel(str(folder)), FollowsDefaults))
    found = failures(report)["neutral sampling"]
    assert "drawn tokens are more probable than at temperature 1, top_p 1, top_k 0" in found.sentence
    assert set(failures(report)) <= {"neutral sampling", "sampler against trainer"}


def test_7_a_template_that_forgets_reasoning(tiny_clone: Path, tmp_path: Path) -> None:
    forgets = "(message['content'] if loop.last else message['content'].split('</think>')[-1])"
    folder = with_template(tiny_clone, tmp_path, lambda text: text.replace("message['content']", forgets))
    report = doctor(agent(PretrainedModel(str(folder))), play(context=FullContext()))
    assert set(failures(report)) == {"template prefix", "play"}
    assert "changes earlier turns when a conversation grows" in failures(report)["template prefix"].sentence
    assert found_by("mask round trip", report).verdict is Verdict.NOT_APPLICABLE


class Shifted(WindowContext):
    """Its rows are shifted by one, as labels are for some libraries."""

    def bind(self, tokenizer: ChatTokenizer, prompt: PromptFormat) -> Dialogue:
        return ShiftedDialogue(super().bind(tokenizer, prompt))


class ShiftedDialogue:
    grows = False

    def __init__(self, dialogue: Dialogue) -> None:
        self.dialogue = dialogue

    def next_prompt(self, turns: Sequence[Turn], observation: str, info: Mapping[str, Any]) -> TurnPrompt:
        return self.dialogue.next_prompt(turns, observation, info)

    def rows(self, episode: Episode, first_turn: int) -> list[Row]:
        return [
            Row(
                token_ids=row.token_ids,
                action_mask=(*row.action_mask[1:], False),
                behavior_logprobs=(*row.behavior_logprobs[1:], 0.0),
                turn_of_token=(*row.turn_of_token[1:], -1),
                segment_of_token=(*row.segment_of_token[1:], -1),
            )
            for row in self.dialogue.rows(episode, first_turn)
        ]


def test_8_a_mask_beside_the_answer(tiny_clone: Path) -> None:
    report = doctor(agent(PretrainedModel(str(tiny_clone))), play(context=Shifted(0)))
    found = failures(report)["mask round trip"]
    assert "24 of 24 rows covers other tokens than were sampled" in found.sentence
    assert set(failures(report)) == {"mask round trip", "sampler against trainer"}  # log-probs of other tokens


class LateAdapter(AgentModule):
    """Makes its reference by switching the adapter off, and only then loads what the adapter has learnt."""

    def configure_model(self) -> None:
        super().configure_model()
        with torch.no_grad():
            for name, weight in self.acting.named_parameters():
                if "lora_B" in name:
                    weight.fill_(0.05)


def test_9_a_reference_that_is_not_the_start(tiny_clone: Path) -> None:
    report = doctor(agent(PretrainedModel(str(tiny_clone), lora=LoRA(r=4)), LateAdapter))
    found = the_failure(report)
    assert found.check == "KL at step 0"
    assert "the reference is not the start" in found.sentence


class StaleSampler(AgentModule):
    """Plays with a copy of the weights that nobody renews."""

    def sampler(self, decoding: Decoding, *, grows: bool) -> Sampler:
        stale = copy.deepcopy(self.acting)
        with torch.no_grad():
            for weight in stale.parameters():
                weight.mul_(0.95)
        return Sampler(stale, decoding, grows=grows)


def test_10_a_sampler_with_other_weights(tiny_clone: Path) -> None:
    report = doctor(agent(PretrainedModel(str(tiny_clone)), StaleSampler))
    found = failures(report)["sampler against trainer"]
    assert found.sentence.startswith("|sampler - trainer| log-probs in nats by response length: 1-8 tokens: mean ")
    assert set(failures(report)) <= {"sampler against trainer", "neutral sampling"}


def test_11_a_model_larger_than_the_memory_is_not_loaded(tmp_path: Path) -> None:
    Qwen3Config(hidden_size=65_536, num_hidden_layers=32, intermediate_size=262_144).save_pretrained(tmp_path)
    report = doctor(agent(PretrainedModel(str(tmp_path), dtype="bfloat16")))
    found = the_failure(report)  # not of loading, though no weights are there
    assert found.check == "memory"
    assert "needs more than is free" in found.sentence
    assert "model.tokens_per_pass" in found.remedy
    assert found_by("stop tokens", report).sentence == "the model was not loaded, since it would not fit"


class Drifting(SokobanEnv):
    """Pays by the clock."""

    ticks = itertools.count()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, _, *rest = super().step(action)
        return observation, float(next(self.ticks)), *rest  # type: ignore[return-value]


class Raising(SokobanEnv):
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        raise RuntimeError("the door is stuck")


class Hanging(SokobanEnv):
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(60)
        return super().step(action)


for kind in (Drifting, Raising, Hanging):
    if (env_id := f"tests/{kind.__name__}Sokoban-v0") not in registry:
        register(id=env_id, entry_point=partial(kind))


def test_12_an_environment_whose_rewards_are_no_function_of_the_actions(tiny_clone: Path) -> None:
    found = the_failure(doctor(agent(PretrainedModel(str(tiny_clone))), play("tests/DriftingSokoban-v0")))
    assert found.check == "environment contract"
    assert "the same seed and actions must show the same" in found.sentence.lower()
    assert "check_text_env" in found.remedy


def test_13_an_environment_that_raises(tiny_clone: Path) -> None:
    found = failures(doctor(agent(PretrainedModel(str(tiny_clone))), play("tests/RaisingSokoban-v0")))
    assert set(found) == {"environment contract", "play"}
    assert "the door is stuck" in found["environment contract"].sentence
    assert "the door is stuck" in found["play"].sentence


def test_14_an_environment_that_hangs_is_left_alone(tiny_clone: Path) -> None:
    began = time.perf_counter()
    module = agent(PretrainedModel(str(tiny_clone)))
    found = failures(doctor(module, play("tests/HangingSokoban-v0"), env_seconds=0.3))
    assert time.perf_counter() - began < 30
    assert "did not finish 2 short episodes in 0.3 s" in found["environment contract"].sentence
    assert "data.task.workers" in found["environment contract"].remedy
    assert set(found) == {"environment contract", "play"}


def test_15_an_adapter_with_dropout(tiny_clone: Path) -> None:
    found = the_failure(doctor(agent(PretrainedModel(str(tiny_clone), lora=LoRA(r=4, dropout=0.1)))))
    assert found.check == "loading"
    assert "dropout" in found.sentence


class Meddling(torch.optim.AdamW):
    """Also decays what it was not given."""

    base: Any = None

    def step(self, closure: Any = None) -> Any:
        if self.base is not None:
            self.base.mul_(0.9)
        with torch.no_grad():
            return super().step(closure)


class HandsOut(AgentModule):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        optimizer.base = next(p for p in self.acting.parameters() if not p.requires_grad).data
        return optimizer


def test_16_a_step_that_changes_frozen_weights(tiny_clone: Path) -> None:
    source = PretrainedModel(str(tiny_clone), lora=LoRA(r=4))
    found = the_failure(doctor(agent(source, HandsOut, partial(Meddling, lr=1e-3))))
    assert found.check == "one step"
    assert "changed the frozen weight" in found.sentence


def test_cut_decodings_are_warned_of(tiny_clone: Path) -> None:
    report = doctor(agent(PretrainedModel(str(tiny_clone))), play(top_k=5))
    found = found_by("neutral sampling", report)
    assert found.verdict is Verdict.WARNING
    assert "top_k 5" in found.sentence


def test_answers_that_are_all_cut_are_warned_of(tiny_clone: Path) -> None:
    found = found_by("answers", doctor(agent(PretrainedModel(str(tiny_clone))), play(max_new_tokens=1)))
    assert found.verdict is Verdict.WARNING
    assert "of 24 responses, 0 ended by themselves and 0 were valid actions: all were cut at 1 tokens" in found.sentence


# at the start of fit


def test_fit_begins_with_the_brief_checks(tiny_clone: Path) -> None:
    with pytest.raises(ArlError, match="5 of 13 trainable weights are not in the optimiser"):
        new_trainer().fit(agent(PretrainedModel(str(tiny_clone)), optimizer=HalfAdamW), datamodule=play())


def test_fit_says_the_plan_in_one_line(tiny_clone: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = with_template(tiny_clone, tmp_path, lambda text: text.replace("<|im_end|>", "###"))
    caplog.set_level("INFO", logger="lightning.pytorch.utilities.rank_zero")
    with pytest.raises(ArlError, match="sampling does not stop"):
        new_trainer().fit(agent(PretrainedModel(str(folder))), datamodule=play())
    assert sum("memory plan: " in record.message for record in caplog.records) == 1
