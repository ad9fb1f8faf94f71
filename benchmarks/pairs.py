"""Paired runs of two halves, each in a fresh process; a ratio is that of two neighbours."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
"""`cpu` counts this process's own seconds only: with one thread, nearly the same on a busy machine."""


def parse(description: str, add: Callable[[argparse.ArgumentParser], object]) -> argparse.Namespace:
    """The command line that both comparisons share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", help="interpreter of an environment with TRL and gymnasium")
    parser.add_argument("--pairs", type=int, default=5, help="paired runs")
    parser.add_argument("--threads", type=int, default=1, help="threads of each half")
    parser.add_argument("--steps", type=int, default=2, help="steps of each run; the last one counts")
    parser.add_argument("--kl", type=float, default=0.04, help="weight of the KL to the reference in both; 0 for none")
    parser.add_argument("--trl-checkpointing", action="store_true", help="TRL's default, which trades time for memory")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="seconds of the wall or of the process")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    add(parser)
    parser.add_argument("--half", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--settings", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not (options.half or options.trl_python):
        parser.error("--trl-python is needed")
    return options


def run_half(python: str, script: str, half: str, settings: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """What the half of `script` under another interpreter prints last."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
    }
    command = [python, script, "--half", half, "--settings", json.dumps(settings)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{half} failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_pairs(script: str, trl_python: str, settings: Mapping[str, Any], pairs: int, threads: int) -> list[Any]:
    """Neighbouring runs of both halves, first ours, then theirs, then the other way round."""
    pythons = {"ours": sys.executable, "theirs": trl_python}
    found = []
    for number in range(pairs):
        order = list(pythons) if number % 2 == 0 else list(pythons)[::-1]
        found.append({half: run_half(pythons[half], script, half, settings, threads) for half in order})
        shown = " ".join(f"{half} {found[-1][half]['steps'][-1]['step_s']:.2f} s" for half in pythons)
        print(f"pair {number + 1}: {shown} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)
    return found


def compare(pairs: Sequence[Any], value: Callable[[Any], float]) -> dict[str, float]:
    """Median of each half, and the ratio theirs / ours of each pair: median, least, most."""
    ours, theirs = ([value(pair[half]) for pair in pairs] for half in ("ours", "theirs"))
    ratios = [t / o for o, t in zip(ours, theirs, strict=True)]
    return {
        "ours": statistics.median(ours),
        "theirs": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
    }


def last(name: str) -> Callable[[Any], float]:
    """A figure of the last step; those before it warm up."""
    return lambda half: float(half["steps"][-1][name])


MEASURES: dict[str, Callable[[Any], float]] = {
    "whole step, s": last("step_s"),
    "rollout, s": last("rollout_s"),
    "scoring, s": last("score_s"),
    "update, s": last("update_s"),
    "scoring + update, s": lambda half: last("score_s")(half) + last("update_s")(half),
    "seconds a sampled token": lambda half: last("rollout_s")(half) / last("sampled")(half),
    "tokens computed in play (counted)": last("computed"),
    "resident memory before, GB": lambda half: float(half["before_gb"]),
    "extra resident memory, GB": lambda half: float(half["extra_gb"]),
    "peak resident memory, GB": lambda half: float(half["peak_gb"]),
}


def print_table(title: str, results: Mapping[str, Mapping[str, float]]) -> None:
    print(f"\n{title}\n\n| | ours | TRL | TRL / ours, median | least – most |\n|---|---|---|---|---|")
    for name, row in results.items():
        span = f"{row['least']:.2f} – {row['most']:.2f}"
        print(f"| {name} | {row['ours']:.4g} | {row['theirs']:.4g} | {row['ratio']:.2f} | {span} |", flush=True)


def check_equal(pairs: Sequence[Any], sampled: int) -> None:
    """Raises unless both halves sampled the tokens that they should, in rows of equal lengths, in every pair."""
    steps = [half["steps"][-1] for pair in pairs for half in pair.values()]
    assert {step["sampled"] for step in steps} == {sampled}, (steps, sampled)
    assert len({step["row_tokens"] for step in steps}) == 1, steps
