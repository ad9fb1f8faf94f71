"""A study says what it means, and its cells are known by what decides them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from arl_lightning.study.cells import Cell, cell_of
from arl_lightning.study.definition import Study, read
from arl_lightning.study.search import Search
from arl_lightning.types import ArlError

STUDIES = Path(__file__).parents[2] / "configs" / "study"
SMALL = """
name: small
prediction: none
seeds: [0, 1]
tasks:
  sokoban:
    epochs: 3
    configs: [tasks/sokoban.yaml, own.yaml]
    words: ["--model.lr_scheduler.total_iters={epochs}", "--data.task.workers={processes: 1}"]
    start: {configs: [cloning.yaml], words: ["--model.policy.seed={seed}"]}
methods:
  grpo: {}
  variant: {configs: [methods/grpo.yaml], overlays: [own.yaml], words: ["--data.groups=2"]}
"""


def written(folder: Path, text: str = SMALL, own: str = "data: {init_args: {groups: 4}}\n") -> Study:
    (folder / "own.yaml").write_text(own)
    (folder / "study.yaml").write_text(text)
    return read(Study, str(folder / "study.yaml"))


def cell(study: Study, method: str = "grpo", seed: int = 0) -> Cell:
    return cell_of(study, "sokoban", method, seed, Path("runs"))


def test_cells_are_the_start_and_all_methods_of_a_seed_then_the_next_seed(tmp_path: Path) -> None:
    places = [("sokoban", row, seed) for seed in (0, 1) for row in ("before", "grpo", "variant")]
    assert list(written(tmp_path).cells()) == places


def test_what_all_start_from_is_tested_once_whatever_the_methods_are(tmp_path: Path) -> None:
    before = cell(written(tmp_path), "before", 1)
    words = before.words_of("test")
    assert before.verbs == ("test",)
    assert before.start is not None
    assert words[-1] == f"--model.policy.pretrained={before.start.folder}/fit/model"
    assert not any(word.startswith("--ckpt_path") for word in words)
    assert before.recreate().splitlines()[-1].startswith("arl test --config")
    others = written(tmp_path, SMALL.replace("grpo: {}", "gspo: {}").replace("methods:", "baseline: gspo\nmethods:"))
    assert cell(others, "before", 1).folder == before.folder


def test_a_start_that_seeds_share_is_tested_once_and_none_where_there_is_none(tmp_path: Path) -> None:
    shared = written(
        tmp_path, SMALL.replace('--model.policy.seed={seed}"]}', '--model.policy.seed={seed}"], per_seed: false}')
    )
    assert [seed for _, row, seed in shared.cells() if row == "before"] == [0]
    own = written(tmp_path, re.sub("\n    start: .*", "", SMALL))
    assert {row for _, row, _ in own.cells()} == {"grpo", "variant"}


def test_no_method_may_be_called_as_the_start_is(tmp_path: Path) -> None:
    with pytest.raises(ArlError, match="calls a method 'before'"):
        written(tmp_path, SMALL.replace("variant:", "before:"))


def test_a_cell_is_an_ordinary_command(tmp_path: Path) -> None:
    run = cell(written(tmp_path), "variant", 1)
    words = run.words_of("fit")
    names = [Path(words[place + 1]).name for place, word in enumerate(words) if word == "--config"]
    assert words[0] == "fit"
    assert names == ["base.yaml", "grpo.yaml", "sokoban.yaml", "own.yaml", "own.yaml"]
    assert words[11:] == [
        "--model.lr_scheduler.total_iters=3",
        "--data.task.workers={processes: 1}",  # braces of YAML stay
        "--data.groups=2",
        "--trainer.max_epochs=3",
        "--seed_everything=1",
        f"--trainer.default_root_dir={run.folder}/fit",
        f"--model.policy.pretrained={run.start.folder}/fit/model" if run.start else "",
    ]
    assert run.words_of("test")[-1] == f"--ckpt_path={run.folder}/fit/checkpoints/last.ckpt"
    assert run.start is not None
    assert "--model.policy.seed=1" in run.start.words
    assert run.recreate().splitlines()[0].startswith("arl fit --config")
    assert [line.split()[1] for line in run.recreate().splitlines()] == ["fit", "fit", "test"]


def test_a_cell_is_known_by_what_decides_it(tmp_path: Path) -> None:
    one = cell(written(tmp_path))
    assert one.folder.name == f"sokoban-grpo-s0-{one.digest}"
    same = written(tmp_path, SMALL.replace("name: small", "name: another"), "# said\ndata: {init_args: {groups: 4}}\n")
    assert cell(same).folder == one.folder
    others = {
        cell(written(tmp_path), seed=1).digest,
        cell(written(tmp_path, own="data: {init_args: {groups: 5}}\n")).digest,
        cell(written(tmp_path, SMALL.replace("epochs: 3", "epochs: 4"))).digest,
        cell(written(tmp_path, SMALL.replace("[cloning.yaml]", "[cloning.yaml, own.yaml]"))).digest,
    }
    assert len({one.digest, *others}) == 5


def test_a_tasks_overlays_are_for_one_method_and_win(tmp_path: Path) -> None:
    study = written(tmp_path, SMALL.replace("    start:", "    overlays: {variant: [methods/sapo.yaml]}\n    start:"))
    assert [path.name for path in cell(study, "variant").configs[-2:]] == ["own.yaml", "sapo.yaml"]
    assert "sapo.yaml" not in [path.name for path in cell(study).configs]


def test_every_shipped_task_names_methods_and_files_that_exist() -> None:
    methods = {path.stem for path in (STUDIES.parent / "methods").glob("*.yaml")}
    paths = sorted((STUDIES / "tasks").glob("*.yaml"))
    assert paths
    for path in paths:
        overlays = yaml.safe_load(path.read_text()).get("overlays", {})
        assert set(overlays) <= methods, path
        assert all((STUDIES.parent / name).is_file() for names in overlays.values() for name in names), path


@pytest.mark.parametrize("text", ["", "- a", "tasks: {a: [}", "tasks: {sokoban: gone.yaml}"])
def test_a_file_that_holds_no_study_is_one_sentence(text: str, tmp_path: Path) -> None:
    with pytest.raises(ArlError) as refusal:
        written(tmp_path, text)
    assert "\n" not in str(refusal.value)


def test_studies_share_a_task_by_the_name_of_its_file(tmp_path: Path) -> None:
    whole = yaml.safe_load(SMALL)
    (tmp_path / "room.yaml").write_text(yaml.safe_dump(whole["tasks"]["sokoban"]))
    named = yaml.safe_dump({**whole, "tasks": {"sokoban": "room.yaml"}})
    assert cell(written(tmp_path, named)) == cell(written(tmp_path))
    (tmp_path / "room.yaml").write_text("epoch: 3\n")
    with pytest.raises(ArlError, match="epoch"):
        written(tmp_path, named)


def test_one_start_can_serve_all_seeds(tmp_path: Path) -> None:
    each = [cell(written(tmp_path), seed=seed).start for seed in (0, 1)]
    text = SMALL.replace('{seed}"]}', '{seed}"], per_seed: false}')
    shared = [cell(written(tmp_path, text), seed=seed).start for seed in (0, 1)]
    assert each[0] != each[1]
    assert shared[0] == shared[1] == each[0]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seeds: [0, 1]", "seeds: [0, 0]", "names a seed twice"),
        ("seeds: [0, 1]", "seeds: []", "has no seeds"),
        ("epochs: 3", "epochs: 0", "epochs to at least 1"),
        ("epochs: 3", "epoch: 3", "epoch"),
        ("  grpo: {}", "  gspo: {}", "baseline"),
        ("seeds: [0, 1]", "seeds: [0]\npredictions: [{says: s, above: grpo, below: gone}]", "'gone'"),
        ("seeds: [0, 1]", "seeds: [0]\npredictions: [{says: s, above: grpo, below: grpo, task: gone}]", "'gone'"),
    ],
)
def test_what_cannot_be_meant_is_refused(old: str, new: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ArlError, match=said) as refusal:
        written(tmp_path, SMALL.replace(old, new))
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArlError, match=r"no shipped configuration 'gone\.yaml'"):
        cell(written(tmp_path, SMALL.replace("own.yaml", "gone.yaml")))
    with pytest.raises(ArlError, match="there is no file"):
        read(Study, str(tmp_path / "gone.yaml"))


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")) + sorted(STUDIES.glob("findings/*.yaml")), ids=str)
def test_every_shipped_study_names_what_exists_and_predicts(path: Path) -> None:
    study = read(Study, str(path))
    assert len(study.prediction) > 100
    assert study.predictions
    assert len({cell_of(study, *place, Path("runs")).folder for place in study.cells()}) == len(list(study.cells()))


def test_findings_share_the_runs_of_the_regimes() -> None:
    whole = {
        cell_of(study, *place, Path("runs")).folder
        for name in ("sokoban_weak", "sokoban_long")
        for study in [read(Study, str(STUDIES / f"{name}.yaml"))]
        for place in study.cells()
    }
    for name in ("1_tolerant_clipping", "2_sequence_mask", "3_fine_advantages"):
        study = read(Study, str(STUDIES / "findings" / f"{name}.yaml"))
        assert {cell_of(study, *place, Path("runs")).folder for place in study.cells()} <= whole


@pytest.mark.parametrize("path", sorted(STUDIES.glob("search/*.yaml")), ids=str)
def test_every_shipped_search_sets_keys_of_its_methods(path: Path) -> None:
    search = read(Search, str(path))
    study = read(Study, str(path.parent / search.study))
    assert search.trials >= 8
    assert set(search.spaces) == set(study.methods)
    assert not set(search.seeds) & set(study.seeds)
    for method, space in search.spaces.items():
        run = cell_of(study, search.task, method, 0, Path("runs"))
        configs = [yaml.safe_load(config.read_text()) for config in run.configs]
        for key in (key for found in space.values() for key in found.keys):
            assert any(holds(config, key.split(".")) for config in configs), f"{method}: {key}"


def holds(config: object, keys: list[str]) -> bool:
    for key in keys:
        if not isinstance(config, dict) or key not in config:
            return False
        config = config[key]
    return True
