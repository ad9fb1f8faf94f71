"""Records of a run: lines that are only added, cut back by a resumed run, and never torn."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from arl_lightning.callbacks.run_events import RunEvents, record_event
from arl_lightning.callbacks.run_log import EVENTS, append_lines, forget, read_lines
from arl_lightning.testing import scripted_episode
from arl_lightning.types import EpisodeGroup, Measure, Rollout


def trainer_of(folder: Path, logger: TensorBoardLogger | bool = False, epoch: int = 0) -> Trainer:
    trainer = Trainer(
        accelerator="cpu",
        logger=logger,
        default_root_dir=folder,
        max_epochs=9,
        enable_progress_bar=False,
        callbacks=[RunEvents()],
    )
    trainer.fit_loop.epoch_progress.current.completed = epoch
    trainer.datamodule = SimpleNamespace(groups=4)  # type: ignore[attr-defined]
    return trainer


def told(folder: Path) -> list[tuple[int, str, str]]:
    return [(line["epoch"], line["kind"], line["text"]) for line in read_lines(folder / EVENTS)]


def test_an_event_is_one_line_and_a_text_in_tensorboard(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="", version="")
    trainer = trainer_of(tmp_path, logger, epoch=3)
    record_event(trainer, "danger", "drift √\nis high")
    record_event(trainer, "action", "rolled back")
    assert told(tmp_path) == [(3, "danger", "drift √\nis high"), (3, "action", "rolled back")]
    assert len((tmp_path / EVENTS).read_text(encoding="utf-8").splitlines()) == 2
    logger.finalize("success")
    events = EventAccumulator(str(tmp_path)).Reload()
    (event,) = events.Tensors("events/danger/text_summary")
    assert event.tensor_proto.string_val[0].decode() == "drift √\nis high"


def test_without_its_callback_no_event_is_written(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.callbacks = []  # type: ignore[attr-defined]
    record_event(trainer, "danger", "nobody listens")
    assert list(tmp_path.iterdir()) == []


def test_text_that_no_file_can_hold_is_still_valid_json(tmp_path: Path) -> None:
    append_lines(trainer_of(tmp_path), EVENTS, [{"text": "half a \ud800 pair"}])
    assert list(read_lines(tmp_path / EVENTS)) == [{"text": "half a \ud800 pair"}]


def test_a_torn_line_is_left_out_and_gone_after_the_next_cut(tmp_path: Path) -> None:
    file = tmp_path / EVENTS
    file.write_text('{"epoch": 0}\n7\n{"epoch": 1}\n{"epo')
    assert list(read_lines(file)) == [{"epoch": 0}, {"epoch": 1}]
    forget(trainer_of(tmp_path), EVENTS, lambda line: line["epoch"] == 1)
    assert file.read_text() == '{"epoch": 0}\n'
    assert list(read_lines(tmp_path / "none.jsonl")) == []


def test_another_process_than_the_first_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(tmp_path)
    monkeypatch.setattr(type(trainer), "is_global_zero", property(lambda self: False))
    record_event(trainer, "danger", "not here")
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_tells_the_epochs_that_it_plays_again_only_once(tmp_path: Path) -> None:
    first = trainer_of(tmp_path)
    RunEvents().on_train_start(first, LightningModule())
    for epoch in range(3):
        record_event(trainer_of(tmp_path, epoch=epoch), "watch", "a sign")
    attached(first).on_exception(trainer_of(tmp_path, epoch=2), LightningModule(), RuntimeError("disk\nmore"))
    resumed = trainer_of(tmp_path, epoch=1)
    RunEvents().on_train_start(resumed, LightningModule())
    assert told(tmp_path) == [
        (0, "begin", "the run begins, for 9 epochs"),
        (0, "watch", "a sign"),
        (2, "error", "stopped by RuntimeError: disk"),  # it did happen, whatever is played again
        (1, "resume", "the run goes on from the end of epoch 0"),
    ]


def attached(trainer: Trainer) -> RunEvents:
    events = RunEvents()
    events.setup(trainer, LightningModule(), "fit")
    return events


def rollout(groups: int, **counted: int) -> Rollout:
    made = tuple(EpisodeGroup(seed, (scripted_episode([1.0]), scripted_episode([0.0]))) for seed in range(groups))
    return Rollout("train", 0, made, {f"filter/{name}": Measure(count, 1) for name, count in counted.items()})


FULL = rollout(4, attempts=1, admitted=4, filled=0)
FILLED = rollout(4, attempts=3, admitted=1, filled=3)
SHRUNK = rollout(2, attempts=3, admitted=2, filled=0)
SKIPPED = rollout(0, attempts=3, admitted=2, filled=0)


@pytest.mark.parametrize(
    ("short", "sentence"),
    [
        (FILLED, "only 1 of 4 groups in 3 attempts: 4 are learned from, 3 of them dropped ones"),
        (SHRUNK, "only 2 of 4 groups in 3 attempts: 2 are learned from, 0 of them dropped ones"),
        (SKIPPED, "only 2 of 4 groups in 3 attempts: 0 are learned from, 0 of them dropped ones"),
    ],
)
def test_too_few_admitted_groups_are_told_when_it_begins(tmp_path: Path, short: Rollout, sentence: str) -> None:
    events = attached(trainer_of(tmp_path))
    for played in (FULL, short, short, FULL, short):
        events.rollout_finished(played)
    assert told(tmp_path) == 2 * [(0, "filter", f"the gates admitted {sentence}")]


def test_a_resumed_run_knows_that_the_gates_had_run_out(tmp_path: Path) -> None:
    before = attached(trainer_of(tmp_path))
    before.rollout_finished(FILLED)
    after = attached(trainer_of(tmp_path))
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    after.rollout_finished(FILLED)
    assert len(told(tmp_path)) == 1


def test_play_without_gates_or_outside_of_a_fit_is_no_event(tmp_path: Path) -> None:
    events = attached(trainer_of(tmp_path))
    events.rollout_finished(rollout(2))
    events.setup(trainer_of(tmp_path), LightningModule(), "test")
    events.rollout_finished(FILLED)
    events.on_exception(trainer_of(tmp_path), LightningModule(), RuntimeError())
    assert told(tmp_path) == []
