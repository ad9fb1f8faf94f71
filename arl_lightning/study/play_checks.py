"""The doctor's checks of what was played: how tokens were drawn, which of them are learnt from, and how they score."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from arl_lightning.datamodules.rollout_datamodule import RolloutDataModule
from arl_lightning.modules.agent_module import AgentModule
from arl_lightning.study.findings import Finding, failure, not_applicable, ok, warning
from arl_lightning.study.patient import Patient, Played, responses
from arl_lightning.types import Decoding

_DRAWS, _DRAWN_TOKENS = 128, 16
_CHUNK = 64  # positions whose distributions are looked at together
_SIGMAS, _PLACE = 5.0, 0.01
_START_NATS = 1e-3
_EDGES = (8, 64, 512)
"""Response lengths (tokens) at which the mismatch is told apart."""
_MISMATCH_NATS = {True: (1e-4, 1e-2), False: (2e-2, 0.5)}
"""Largest mean and largest single mismatch that rounding explains, in float32 and below."""
_MISMATCH_FAILS = 10


def sampling(patient: Patient) -> Finding:
    """Tokens are drawn from the model's own distribution, whatever generation defaults the model ships."""
    played, module, data = patient.played, patient.module, patient.data
    if played is None or not isinstance(module, AgentModule) or not isinstance(data, RolloutDataModule):
        return not_applicable(patient.missing.get("rows", "nothing is sampled in this run"))
    asked = data.decoding
    if asked.top_p < 1 or asked.top_k > 0 or asked.temperature != 1:
        return warning(
            f"training samples with temperature {asked.temperature:g}, top_p {asked.top_p:g}, top_k {asked.top_k}: "
            "groups become alike, and cut distributions bias the ratios",
            "set data.decoding.temperature to 1, top_p to 1 and top_k to 0",
        )
    prompt = next(turn.prompt_ids for episode in played.episodes for turn in episode.turns)
    place, error, count = mean_place(module, prompt, asked)
    sigmas = (place - 0.5) / error if error else 0.0
    if abs(sigmas) > _SIGMAS and abs(place - 0.5) > _PLACE:
        return failure(
            f"drawn tokens are {'more' if place < 0.5 else 'less'} probable than at temperature 1, top_p 1, top_k 0: "
            f"their mean place in the distribution is {place:.3f}, {abs(sigmas):.0f} standard errors from 0.5",
            "draw with arl_lightning.modules.generation.Sampler, which ignores the model's generation_config",
        )
    shipped = _shipped(module)
    beside = f", although the model ships {shipped}" if shipped else ""
    return ok(f"{count} drawn tokens lie in their distributions as neutral draws do (mean place {place:.3f}){beside}")


@torch.no_grad()
def mean_place(module: AgentModule, prompt: Sequence[int], decoding: Decoding) -> tuple[float, float, int]:
    """Where drawn tokens lie in their distributions on average, the standard error of that, and their number.

    The place of a token is the mass of all more probable ones and half of its own: 0.5 on average for honest draws of
    any distribution, less for draws that favour what is probable. Its variance is (1 - sum of p^3) / 12.
    """
    limit = min(decoding.max_new_tokens, _DRAWN_TOKENS)
    sampler = module.sampler(replace(decoding, max_new_tokens=limit), grows=False)
    keys = range(sampler.admit(range(_DRAWS), [len(prompt)] * _DRAWS))
    drawn = [one.token_ids for one in sampler.sample(keys, [prompt] * len(keys), keys)]
    sampler.forget(keys)
    policy, total, variance, count = module.acting, 0.0, 0.0, 0
    step = max(module.tokens_per_pass // (len(prompt) + limit), 1)
    for start in range(0, len(drawn), step):
        rows = drawn[start : start + step]
        width = len(prompt) + max(map(len, rows))
        padded = [[*prompt, *row, *[prompt[-1]] * (width - len(prompt) - len(row))] for row in rows]
        ids_NT = torch.tensor(padded, device=module.device)
        lengths_N1 = torch.tensor([[len(prompt) + len(row)] for row in rows], device=module.device)
        places_T = torch.arange(width, device=module.device)
        acts_NT = (places_T >= len(prompt)) & (places_T < lengths_N1)
        with module.precision():
            decoder = policy.model.get_decoder()  # type: ignore[no-untyped-call]
            hidden_NTH: Tensor = decoder(input_ids=ids_NT, use_cache=False).last_hidden_state
        for hidden_cH, targets_c in zip(
            torch.split(hidden_NTH[:, :-1][acts_NT[:, 1:]], _CHUNK), torch.split(ids_NT[acts_NT], _CHUNK), strict=True
        ):
            logprobs_cV = torch.log_softmax(policy.logits(hidden_cH), -1).double()
            probs_cV, chosen_c1 = logprobs_cV.exp(), logprobs_cV.gather(1, targets_c[:, None])
            above_c = (probs_cV * (logprobs_cV > chosen_c1)).sum(-1)
            alike_c = (probs_cV * (logprobs_cV == chosen_c1)).sum(-1)
            total += float((above_c + alike_c / 2).sum())
            variance += float((1 - probs_cV.pow(3).sum(-1)).clamp(min=0).sum()) / 12
            count += len(targets_c)
    return total / count, math.sqrt(variance) / count, count


def mask(patient: Patient) -> Finding:
    """What is learnt from is exactly what was sampled."""
    played = patient.played
    if played is None or patient.task is None:
        return not_applicable(patient.missing.get("rows", "nothing is sampled in this run"))
    tokenizer, task = patient.module.tokenizer, patient.task
    grows = task.context.bind(tokenizer, task.prompt).grows
    usable = [episode for episode in played.episodes if episode.usable]
    by_episode = [
        [turn.completion.token_ids for turn in episode.turns if turn.valid or task.learn_from_invalid]
        for episode in usable
    ]
    sampled = [tuple(chain(*turns)) for turns in by_episode] if grows else list(chain(*by_episode))
    batch = played.batch
    learnt = [
        tuple(ids_T[acts_T].tolist()) for ids_T, acts_T in zip(batch.input_ids_NT, batch.action_mask_NT, strict=True)
    ]
    wrong = Counter(learnt) - Counter(sampled)
    lost = Counter(ids for ids in sampled if ids) - Counter(learnt)
    if wrong or lost:
        shown = [repr(tokenizer.decode(next(iter(rest)))) if rest else "nothing" for rest in (wrong, lost)]
        return failure(
            f"the action mask of {sum(wrong.values())} of {len(learnt)} rows covers other tokens than were sampled: "
            f"{shown[0]} in place of {shown[1]}",
            "make rows from lengths of prompts and responses, as arl_lightning.datamodules.conversation does, never "
            "from token values",
        )
    texts = [turn.response for episode in usable for turn in episode.turns]
    again = [_read(patient, ids) for ids in responses(usable)]
    if texts != again:
        return failure("responses decode to another text than play read", "decode token ids without changing them")
    return ok(f"the action mask of {len(learnt)} rows decodes to exactly the {len(texts)} responses")


def answers(patient: Patient) -> Finding:
    """Responses end by themselves, and some of them are actions."""
    played = patient.played
    if played is None:
        return not_applicable(patient.missing.get("rows", "nothing is sampled in this run"))
    turns = [turn for episode in played.episodes for turn in episode.turns]
    finished, valid = (sum(map(has, turns)) for has in (lambda t: t.completion.finished, lambda t: t.valid))
    told = f"of {len(turns)} responses, {finished} ended by themselves and {valid} were valid actions"
    if not finished:
        longest = max(map(len, responses(played.episodes)))
        return warning(
            f"{told}: all were cut at {longest} tokens",
            "raise data.decoding.max_new_tokens, or check which token the model was taught to end with",
        )
    if not valid:
        return warning(
            told, "clone some demonstrations first (configs/cloning.yaml), or ask for the form in the prompt"
        )
    return ok(told)


def start(patient: Patient) -> Finding:
    """Before the first step the policy is its reference."""
    played = patient.played
    if played is None:
        return not_applicable(patient.missing.get("rows", "there is no reference in this run"))
    batch = played.batch
    gap = (batch.old_logprobs_NT - batch.ref_logprobs_NT)[batch.action_mask_NT].abs()
    if not float(gap.max()) <= _START_NATS:
        return failure(
            f"before the first step policy and reference differ by up to {float(gap.max()):.3g} nats at a token, "
            f"{float(gap.mean()):.3g} on average: the reference is not the start",
            "make the reference after the adapter is loaded, and do not take an adapter's base for its start",
        )
    return ok(f"KL to the reference is 0 before the first step (largest difference {float(gap.max()):.1g} nats)")


def mismatch(patient: Patient) -> Finding:
    """The sampler and the trainer give the same tokens the same log-probs, at every length of response."""
    played = patient.played
    if played is None:
        return not_applicable(patient.missing.get("rows", "nothing is sampled in this run"))
    module = patient.module
    exact = module.acting.model.dtype == torch.float32 and str(module.trainer.precision).startswith("32")
    gaps = gaps_by_length(played)
    told = "; ".join(
        f"{name} tokens: mean {float(gap.mean()):.2g}, max {float(gap.max()):.2g}" for name, gap in gaps.items()
    )
    mean = max(float(gap.mean()) for gap in gaps.values())
    largest = max(float(gap.max()) for gap in gaps.values())
    excess = max(mean / _MISMATCH_NATS[exact][0], largest / _MISMATCH_NATS[exact][1])
    remedy = (
        "sample with the weights and in the precision of training; what rounding is left, set "
        "model.objective.sampler_correction for"
    )
    sentence = f"|sampler - trainer| log-probs in nats by response length: {told}"
    if not excess <= _MISMATCH_FAILS:
        return failure(sentence, remedy)
    return ok(sentence) if excess <= 1 else warning(sentence, remedy)


def gaps_by_length(played: Played) -> dict[str, Tensor]:
    """|sampler - trainer| of all action tokens, by the length of their response."""
    batch = played.batch
    acts_NT = batch.action_mask_NT
    gaps_A = (batch.behavior_logprobs_NT - batch.old_logprobs_NT)[acts_NT].abs().double()
    _, segment_A, counts = torch.unique(batch.segment_ids_NT[acts_NT], return_inverse=True, return_counts=True)
    lengths_A = counts[segment_A]
    bounds = list(zip((0, *_EDGES), (*_EDGES, None), strict=True))
    found = {}
    for low, high in bounds:
        inside_A = (lengths_A > low) & (lengths_A <= (high or lengths_A.max()))
        if bool(inside_A.any()):
            found[f"{low + 1}-{high}" if high else f"over {low}"] = gaps_A[inside_A]
    return found


def _read(patient: Patient, token_ids: Sequence[int]) -> str:
    ends = token_ids[-1:] and token_ids[-1] in patient.module.acting.stop_token_ids
    return patient.module.tokenizer.decode(token_ids[:-1] if ends else token_ids)


def _shipped(module: AgentModule) -> str:
    """Generation defaults of the model that would not be neutral."""
    shipped = module.acting.model.generation_config
    neutral = {"temperature": (None, 1.0), "top_p": (None, 1.0), "top_k": (None, 0)}
    return ", ".join(
        f"{name} {value:g}" for name, but in neutral.items() if (value := getattr(shipped, name, None)) not in but
    )
