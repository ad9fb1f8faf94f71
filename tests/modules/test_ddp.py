"""Two processes with the rows of one step between them do what one process does with all of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import arl_lightning

SCRIPT = Path(__file__).with_name("ddp_fit.py")


def step(folder: Path, aggregation: str, devices: int) -> dict[str, torch.Tensor]:
    output = folder / f"{devices}.pt"
    package = Path(arl_lightning.__file__).parents[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(package)}
    subprocess.run(
        [sys.executable, str(SCRIPT), str(output), aggregation, str(devices)],
        check=True,
        env=environment,
        timeout=600,
        capture_output=True,
    )
    weights: dict[str, torch.Tensor] = torch.load(output, weights_only=True)
    return weights


@pytest.mark.parametrize(
    "aggregation",
    ["SequenceMean", *(pytest.param(name, marks=pytest.mark.slow) for name in ("TokenMean", "SequenceSum"))],
)
def test_two_ranks_step_as_one_with_all_rows(tmp_path: Path, aggregation: str) -> None:
    one, two = step(tmp_path, aggregation, 1), step(tmp_path, aggregation, 2)
    assert one.keys() == two.keys()
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0, atol=1e-6)
