"""`arl study` from the outside: what a user types, and what is there afterwards."""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from arl_lightning.cli import main
from arl_lightning.study.cells import cell_of
from arl_lightning.study.definition import Study, read
from arl_lightning.types import ArlError

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "configs" / "study"
ALL_STUDIES = [path for folder in (".", "findings", "paper") for path in sorted((STUDIES / folder).glob("*.yaml"))]
TASK: dict[str, Any] = {
    "epochs": 8,
    "configs": ["tasks/sokoban.yaml", "hardware/cpu.yaml", "small.yaml"],
    "words": ["--model.lr_scheduler=null"],
    "start": {
        "configs": ["cloning.yaml", "tasks/sokoban.yaml", "hardware/cpu.yaml", "small_clone.yaml"],
        "words": ["--model.policy.seed={seed}"],
    },
}


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study at the smallest size, beside the working folder; its third method cannot run."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("small.yaml", "small_clone.yaml"):
        (tmp_path / name).write_text((ROOT / "tests" / "cli" / name).read_text())
    methods = {"grpo": {}, "sapo": {}, "wrong": {"configs": ["methods/grpo.yaml"], "words": ["--data.grops=1"]}}
    path = tmp_path / "tiny.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "name": "tiny",
                "prediction": "nothing is learnt",
                "seeds": [0],
                "tasks": {"sokoban": TASK},
                "methods": methods,
                "predictions": [{"says": "as good", "above": "sapo", "below": "grpo", "margin": 1.0}],
            }
        )
    )
    return path


def rows(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "runs.csv").open() as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def is_study(path: Path) -> bool:
    return "methods" in yaml.safe_load(path.read_text())


def test_a_study_that_is_nowhere_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["study", "run", "gone.yaml"])
    assert capsys.readouterr().err == "arl: there is no file 'gone.yaml'\n"


def test_a_dry_run_plans_every_command_and_writes_nothing(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["study", "run", str(study), "--dry_run", "true"])
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "start-sokoban:",
        "sokoban-before:",
        "sokoban-grpo:",
        "sokoban-sapo:",
    ]
    assert all("memory plan:" in line for line in lines)
    assert "sokoban-wrong" in printed.err
    assert "did you mean 'groups'?" in printed.err
    assert not list(Path.cwd().iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in ALL_STUDIES if is_study(path)], ids=lambda path: path.stem)
def test_every_shipped_study_passes_the_dry_run(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    main(["study", "run", str(path), "--dry_run", "true"])
    assert capsys.readouterr().out.splitlines()[-1].endswith("nothing was run")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alfworld", "webshop", "sokoban", "tir_math"])
def test_the_published_settings_fit_a_card_of_24_gb(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = {  # Qwen3-4B
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(shape))
    path = tmp_path / "study.yaml"
    path.write_text((STUDIES / "paper" / f"{name}.yaml").read_text().replace("Qwen/Qwen3-4B", str(tmp_path)))
    main(["study", "run", str(path), "--dry_run", "true"])
    plans = [line for line in capsys.readouterr().out.splitlines() if "memory plan:" in line]
    needed_gb = [float(plan.partition("memory plan: ")[2].split()[0]) for plan in plans]
    assert len(needed_gb) == 1 + 1 + 12  # the start, its test, and the methods
    assert max(needed_gb) + 0.6 < 24 / 1.25  # CUDA's context, and the plan's stated error


@pytest.mark.slow
def test_a_study_that_was_killed_goes_on_and_reports_every_run(study: Path) -> None:
    command = [sys.executable, "-m", "arl_lightning", "study", "run", str(study), "--jobs", "1"]
    definition = read(Study, str(study))
    before, grpo, sapo, wrong = (cell_of(definition, *place, Path("runs/study")) for place in definition.cells())
    first = subprocess.Popen(command, start_new_session=True)
    until = time.monotonic() + 300
    while not list((sapo.folder / "fit").rglob("last*.ckpt")):
        assert first.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)  # the runner and what it runs, as a machine that goes down
    first.wait()
    assert (grpo.status(), sapo.status()) == ("finished", "interrupted")

    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "1 of 4 cells are not finished (1 failed)" in again.stderr
    assert [(a["verb"], a["exit_code"]) for a in before.attempts()] == [("test", 0)]
    assert [(a["verb"], a["exit_code"]) for a in grpo.attempts()] == [("fit", 0), ("test", 0)]
    assert [(a["verb"], a["exit_code"]) for a in sapo.attempts()] == [("fit", None), ("fit", 0), ("test", 0)]
    assert sapo.attempts()[1]["command"][-1] == "--ckpt_path=last"
    assert [(a["verb"], a["exit_code"]) for a in wrong.attempts()] == [("fit", 1), ("fit", 1)]

    record = json.loads((grpo.folder / "record.json").read_text())
    ran = [shlex.join(["arl", *attempt["command"][3:]]) for attempt in grpo.attempts()]
    assert record["recreate"][1:] == ran  # after the line of its start

    main(["study", "report", str(study)])
    folder = Path("runs/study/tiny")
    page = (folder / "report.html").read_text()
    assert "3 of 4 runs are finished" in page
    assert "did you mean" in page  # why the last failed
    assert {path.name for path in folder.iterdir()} == {
        "report.html",
        "runs.csv",
        "sinking_sokoban.png",
        "success_rate_sokoban.png",
        "valid_ratio_sokoban.png",
        "results_sokoban.png",
    }
    assert page.count("data:image/png;base64,") == 4
    found = rows(folder)
    assert {method: row["status"] for method, row in found.items()} == {
        "before": "finished",
        "grpo": "finished",
        "sapo": "finished",
        "wrong": "failed",
    }
    assert found["wrong"]["failures"] == "2"
    tested = json.loads((sapo.folder / "test" / "test.json").read_text())
    assert float(found["sapo"]["sampled"]) == pytest.approx(tested["test/success_rate"])
    # 8 rollouts of 4 groups of 4 episodes of at most 3 turns, in the interrupted run as well
    assert 8 * 16 <= float(found["sapo"]["environment_steps"]) <= 8 * 16 * 3


@pytest.mark.slow
def test_a_search_tries_each_method_equally_often_and_goes_on(study: Path) -> None:
    rate = {"keys": {"model.init_args.optimizer.init_args.lr": 1.0}, "low": 1e-4, "high": 1e-2, "log": True}
    twice = {"keys": {"data.init_args.minibatches": 2}, "values": [1, 2]}  # two or four
    path = study.parent / "search.yaml"
    description = {
        "name": "found",
        "study": "tiny.yaml",
        "task": "sokoban",
        "seeds": [7],
        "epochs": 2,
        "spaces": {"grpo": {"rate": {**rate, "first": 1e-3}}, "sapo": {"twice": twice}},
    }
    path.write_text(yaml.safe_dump({**description, "trials": 1}))
    main(["study", "search", str(path)])
    path.write_text(yaml.safe_dump({**description, "trials": 2}))
    main(["study", "search", str(path)])
    folder = Path("runs/study/found")
    for method in ("grpo", "sapo"):
        with (folder / f"{method}.csv").open() as file:
            assert [row["state"] for row in csv.DictReader(file)] == ["COMPLETE"] * 2
        assert sorted(trial.name for trial in (folder / method).iterdir()) == ["trial0.yaml", "trial1.yaml"]
    first = yaml.safe_load((folder / "grpo" / "trial0.yaml").read_text())
    assert first == {"model": {"init_args": {"optimizer": {"init_args": {"lr": 1e-3}}}}}
    best = folder / "sapo.yaml"
    assert yaml.safe_load(best.read_text())["data"]["init_args"]["minibatches"] in (2, 4)
    assert "val/success_rate" in best.read_text().splitlines()[0]
    definition = yaml.safe_load(study.read_text())
    definition["methods"]["sapo"] = {"overlays": [str(best.resolve())]}
    study.write_text(yaml.safe_dump(definition))
    tuned = cell_of(read(Study, str(study)), "sokoban", "sapo", 0, Path("runs/study"))
    assert tuned.configs[-1] == best


def test_a_search_of_what_a_study_has_not_is_refused(study: Path) -> None:
    path = study.parent / "search.yaml"
    space = {"gone": {"rate": {"keys": {"a": 1}, "values": [1.0]}}}
    described = {"name": "s", "study": "tiny.yaml", "task": "sokoban", "seeds": [7], "trials": 1, "spaces": space}
    path.write_text(yaml.safe_dump(described))
    with pytest.raises(SystemExit):
        main(["study", "search", str(path)])
    path.write_text(yaml.safe_dump({**described, "sampler": "grid", "trials": 2}))
    with pytest.raises(SystemExit):
        main(["study", "search", str(path)])


def test_what_a_search_tries_must_not_be_fixed_by_words(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    definition = yaml.safe_load(study.read_text())
    definition["methods"]["grpo"] = {"words": ["--model.objective.surrogate.low=0.1"]}
    study.write_text(yaml.safe_dump(definition))
    band = {"keys": {"model.init_args.objective.surrogate.init_args.low": 1}, "values": [0.1, 0.2]}
    described = {"name": "s", "study": "tiny.yaml", "task": "sokoban", "seeds": [7], "trials": 1}
    path = study.parent / "search.yaml"
    path.write_text(yaml.safe_dump({**described, "spaces": {"grpo": {"band": band}}}))
    with pytest.raises(SystemExit):
        main(["study", "search", str(path)])
    assert "'grpo' fix model.objective.surrogate.low" in capsys.readouterr().err


def test_a_broken_definition_is_an_error_of_the_user(study: Path) -> None:
    study.write_text(study.read_text().replace("epochs: 8", "epochs: many"))
    with pytest.raises(ArlError, match="epochs"):
        read(Study, str(study))
