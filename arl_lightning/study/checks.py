"""The doctor's checks of what is trained: parameters, optimiser, reference, memory, chat template, environment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from arl_lightning.datamodules.conversation import FullContext, check_prefix_preserving
from arl_lightning.envs.contract import ContractError, check_text_env
from arl_lightning.modules.agent_module import AgentModule
from arl_lightning.modules.memory_plan import STATED_ERROR
from arl_lightning.study.findings import Finding, failure, not_applicable, ok, warning
from arl_lightning.study.patient import Patient
from arl_lightning.types import ArlError, TokenBatch

_ANSWER = "arl-sampled-answer"
_SAME_NATS = 1e-4
_CONTRACT_SEEDS, _CONTRACT_STEPS = range(2), 5


def memory(patient: Patient) -> Finding:
    """What the run will take is free."""
    plan = patient.plan
    if plan is None:
        return not_applicable(patient.missing.get("plan", "no plan was made"))
    if plan.fits:
        return ok(plan.line())
    remedy = (
        "lower model.tokens_per_pass or model.cache_gb, switch on model.policy.gradient_checkpointing, take "
        "model.policy.lora with model.policy.quantization, or a smaller model"
    )
    kind = failure if plan.peak_bytes > (1 + STATED_ERROR) * plan.available else warning
    return kind(f"the run needs more than is free: {plan.line()}", remedy)


def trainable_parameters(patient: Patient) -> Finding:
    """Some parameters are trainable, and the optimiser has each of them."""
    trainable = patient.trainable
    if not trainable:
        return failure(
            "zero trainable parameters: training would do nothing while its curves look healthy",
            "choose a model.policy that leaves some to train, such as model.policy.lora on a quantised base",
        )
    if patient.optimizer is None:
        return not_applicable("there is no optimiser")
    held = {id(p) for group in patient.optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in trainable.items() if id(p) not in held]
    count = sum(p.numel() for p in trainable.values())
    if missing:
        return failure(
            f"{len(missing)} of {len(trainable)} trainable weights are not in the optimiser, the first is "
            f"{missing[0]!r}: they would stay as they are",
            "set model.optimizer to one that takes all parameters that it is given",
        )
    return ok(f"{count:,} trainable parameters in {len(trainable)} weights, all in the optimiser")


def stop_tokens(patient: Patient) -> Finding:
    """Sampling stops at the token with which the chat template ends the assistant's turn."""
    tokenizer, stops = patient.module.tokenizer, patient.module.acting.stop_token_ids
    dialogue = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
    rendered = str(tokenizer.apply_chat_template(dialogue, tokenize=False))
    closing = rendered.rpartition(_ANSWER)[2].strip()
    known = ", ".join(repr(token) for token in tokenizer.convert_ids_to_tokens(sorted(stops)))
    if not closing:
        return warning(
            f"the chat template puts nothing behind an answer; sampling stops at {known}",
            "make sure that the model was taught to end with one of these",
        )
    terminator = tokenizer.encode(closing, add_special_tokens=False)[0]
    name = tokenizer.convert_ids_to_tokens([terminator])[0]
    if terminator not in stops:
        return failure(
            f"the chat template ends the assistant's turn with {name!r} (id {terminator}), at which sampling does not "
            f"stop (it does at {known}): every answer would count as cut",
            "make it a special token and the tokenizer's eos_token, or add it to generation_config.eos_token_id",
        )
    return ok(f"the chat template ends the assistant's turn with {name!r}, at which sampling stops")


def prefixes(patient: Patient) -> Finding:
    """A conversation that grows keeps what was said, over several turns with and without reasoning."""
    task = patient.task
    if task is None:
        return not_applicable("the data module has no task")
    tokenizer = patient.module.tokenizer
    dialogue = task.context.bind(tokenizer, task.prompt)  # raises ArlError where the template does not allow it
    if not dialogue.grows:
        return not_applicable("each turn's prompt is built anew, so no earlier turn passes through the chat template")
    if not isinstance(task.context, FullContext):  # which has checked
        check_prefix_preserving(tokenizer, task.prompt.system())
    return ok("the chat template keeps earlier turns as they were, over four turns with and without reasoning")


def learning(patient: Patient) -> Finding:
    """One step changes the trained weights and nothing else, the reference least of all."""
    if patient.optimizer is None or patient.batch is None:
        return not_applicable(patient.missing.get("rows", "there is no optimiser"))
    module = patient.module
    part = patient.batch.take(module.passes(patient.batch)[0]).to(module.device)
    trained, frozen = patient.trainable, _frozen(patient)
    before, base, reference_NT = _prints(trained), _prints(frozen), _reference(patient, part)
    module.acting.train()
    patient.optimizer.zero_grad()
    with module.precision():
        logprobs_NT, _ = module.acting.logprobs(part)
    torch.autograd.backward(-logprobs_NT.sum() / part.action_mask_NT.sum())
    torch.nn.utils.clip_grad_norm_(trained.values(), module.gradient_clip)
    patient.optimizer.step()
    patient.optimizer.zero_grad()
    module.acting.eval()
    after = _prints(trained)
    changed = [name for name, value in after.items() if value != before[name]]
    if not changed:
        return failure(
            "one optimiser step changed no weight",
            "raise model.optimizer.lr above 0, and check that the adapter is not loaded frozen",
        )
    moved = [name for name, value in _prints(frozen).items() if value != base[name]]
    if moved:
        return failure(
            f"one step changed the frozen weight {moved[0]!r}",
            "set model.optimizer to one that changes only what it is given, and keep frozen weights out of it",
        )
    if reference_NT is not None:
        drift = float((_reference(patient, part) - reference_NT).abs().max())  # type: ignore[operator]
        if not drift <= _SAME_NATS:
            return failure(
                f"one step moved the reference by {drift:.3g} nats at a token: it shares weights with the policy",
                "make the reference by arl_lightning.modules.reference.freeze_start, which copies what is trained",
            )
    beside = "" if reference_NT is None else ", and the reference stayed"
    return ok(f"one step on {len(part)} rows changed {len(changed)} of {len(trained)} trained weights{beside}")


def contract(patient: Patient) -> Finding:
    """The environment keeps every law of text environments at a few seeds."""
    task, limit = patient.task, patient.extent.env_seconds
    if task is None:
        return not_applicable("the data module has no task")
    options = getattr(patient.data, "env_options", {})
    remedy = f"run arl_lightning.testing.check_text_env on {task.env_id} and mend what it names"
    try:
        with _deadline(limit):
            check_text_env(partial(task.make_env, options), seeds=_CONTRACT_SEEDS, steps=_CONTRACT_STEPS)
    except ContractError as error:
        return failure(f"{task.env_id} breaks the contract: {error}", remedy)
    except _TimeUpError:
        patient.missing["rows"] = "nothing was played, since the environment does not come to an end"
        return failure(
            f"{task.env_id} did not finish {len(_CONTRACT_SEEDS)} short episodes in {limit:g} s",
            "set data.task.workers, whose step_timeout_s ends a hanging step, and mend the environment",
        )
    except ArlError:
        raise
    except Exception as error:  # noqa: BLE001 - a foreign environment may raise anything; it is reported
        return failure(f"{task.env_id} raised {type(error).__name__}: {error}", remedy)
    return ok(f"{task.env_id} keeps the contract at {len(_CONTRACT_SEEDS)} seeds")


def _frozen(patient: Patient) -> dict[str, Tensor]:
    """Weights of the policy that are not trained; the reference, which may be a module, is looked at by its answers."""
    return {name: p for name, p in patient.module.acting.named_parameters() if not p.requires_grad}


def _prints(weights: Mapping[str, Tensor]) -> dict[str, tuple[float, float]]:
    """Two numbers a weight that hardly any change would leave as they are; nothing is copied."""
    return {
        name: (float(p.detach().abs().sum(dtype=torch.float64)), float(p.detach().sum(dtype=torch.float64)))
        for name, p in weights.items()
    }


@torch.no_grad()
def _reference(patient: Patient, part: TokenBatch) -> Tensor | None:
    module = patient.module
    if not isinstance(module, AgentModule) or module.reference is None:
        return None
    with module.precision():
        return module.reference.logprobs(part)


class _TimeUpError(BaseException):
    """Not an Exception, so that no environment catches it."""


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """What takes longer within is broken off, where the system can: in the main thread of a Unix process."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def end(*_: object) -> None:
        raise _TimeUpError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
