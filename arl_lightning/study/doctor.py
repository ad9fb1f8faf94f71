"""`arl doctor`: the classic silent failures, found before hours are spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from arl_lightning.modules.memory_plan import MemoryPlan
from arl_lightning.modules.policy_module import PolicyModule
from arl_lightning.study import checks, play_checks
from arl_lightning.study.findings import Finding, Report, Verdict, failure, not_applicable
from arl_lightning.study.patient import Extent, Patient, admit, plan_for
from arl_lightning.types import ArlError


class Check(NamedTuple):
    """A check by its name; a `brief` one costs next to nothing, draws nothing and changes nothing."""

    name: str
    examine: Callable[[Patient], Finding]
    brief: bool = False
    needs_model: bool = True


CHECKS: Sequence[Check] = (
    Check("memory", checks.memory, needs_model=False),
    Check("environment contract", checks.contract, needs_model=False),
    Check("trainable parameters", checks.trainable_parameters, brief=True),
    Check("stop tokens", checks.stop_tokens, brief=True),
    Check("template prefix", checks.prefixes, brief=True),
    Check("answers", play_checks.answers),
    Check("mask round trip", play_checks.mask),
    Check("neutral sampling", play_checks.sampling),
    Check("sampler against trainer", play_checks.mismatch),
    Check("KL at step 0", play_checks.start),
    Check("one step", checks.learning),  # the last, since it changes weights
)


def prepare(trainer: Trainer, module: PolicyModule, data: LightningDataModule | None, extent: Extent) -> Patient:
    """The patient with its memory plan, and nothing loaded yet."""
    patient = Patient(module, data, extent=extent)
    try:
        patient.plan = plan_for(trainer, module, data)
    except ArlError as error:
        patient.missing["plan"] = str(error)
    return patient


def examine(patient: Patient, trainer: Trainer) -> Report:
    """Every check's finding; a model that the memory plan refuses is not loaded."""
    before = [_run(check, patient) for check in CHECKS if not check.needs_model]
    if any(found.check == "memory" and found.verdict is Verdict.FAILURE for found in before):
        patient.missing["model"] = "the model was not loaded, since it would not fit"
        loading = []
    else:
        admit(patient, trainer)
        loading = _loading(patient)
    after = [_run(check, patient) for check in CHECKS if check.needs_model]
    return Report((*before, *loading, *after), patient.plan)


def _loading(patient: Patient) -> list[Finding]:
    """What went wrong before there was anything to check."""
    remedies = {
        "model": "mend model.policy as the sentence says",
        "rows": "mend what the sentence names, then ask again",
    }
    names = {"model": "loading", "rows": "play"}
    foreign = {"rows"} if patient.data is None else set()
    return [
        replace(failure(reason, remedies[what]), check=names[what])
        for what, reason in patient.missing.items()
        if what in remedies and what not in foreign
    ]


def _run(check: Check, patient: Patient) -> Finding:
    if check.needs_model and "model" in patient.missing:
        return replace(not_applicable(patient.missing["model"]), check=check.name)
    try:
        found = check.examine(patient)
    except ArlError as error:
        found = failure(str(error), "do as the sentence says")
    return replace(found, check=check.name)


class Checkup(Callback):
    """The brief checks at the start of `fit`; a failure ends it before anything was played."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Looks at what is loaded; draws no number and changes no weight.

        Raises:
            ArlError: a check failed.
        """
        if not isinstance(pl_module, PolicyModule) or trainer.world_size > 1:  # whose weights may be cut up
            return
        data: Any = getattr(trainer, "datamodule", None)
        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        patient = Patient(pl_module, data, trainable=pl_module.trainable_parameters(), optimizer=optimizer)
        for found in (_run(check, patient) for check in CHECKS if check.brief):
            if found.verdict is Verdict.FAILURE:
                raise ArlError(f"{found.sentence}; {found.remedy}")
            if found.verdict is Verdict.WARNING:
                rank_zero_warn(f"{found.check}: {found.sentence}; {found.remedy}")


def announce_plan(trainer: Trainer, module: LightningModule, data: LightningDataModule | None) -> MemoryPlan | None:
    """The memory plan, said in one line, and one more where it is over what is free; None where none can be made."""
    if not isinstance(module, PolicyModule):
        return None
    try:
        plan = plan_for(trainer, module, data)
    except ArlError:  # what is wrong is said where the model is loaded; what cannot be known is no fault
        return None
    rank_zero_info(plan.line())
    if not plan.fits:
        rank_zero_warn("this run may need more memory than is free: `arl doctor` shows what takes it, and remedies")
    return plan
