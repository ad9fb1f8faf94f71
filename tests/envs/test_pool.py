"""Places of environments: each keeps to itself, in one process or several; what is lost is brought back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from arl_lightning.envs.pool import EnvPool, Failure, LocalPool, Reply, Shown
from arl_lightning.envs.registration import make_text_env
from arl_lightning.envs.workers import ProcessPool, Workers
from arl_lightning.types import ArlError

MakePool = Callable[..., EnvPool]


@pytest.fixture
def make_env(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[], object]]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return lambda **options: partial(make_text_env, "faulty:tests/Faulty-v0", options)


@pytest.fixture(params=["local", "processes"])
def make_pool(request: pytest.FixtureRequest, make_env: Callable[..., object]) -> Iterator[MakePool]:
    """Pools of either kind."""
    pools: list[EnvPool] = []

    def make(**options: object) -> EnvPool:
        env = make_env(**options)
        pools.append(LocalPool(env) if request.param == "local" else ProcessPool(env, Workers(2)))  # type: ignore[arg-type]
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture
def in_workers(make_env: Callable[..., object]) -> Iterator[MakePool]:
    """Pools of worker processes, with the given options of Workers and of the environment."""
    pools: list[EnvPool] = []

    def make(workers: Workers, **options: object) -> EnvPool:
        pools.append(ProcessPool(make_env(**options), workers))  # type: ignore[arg-type]
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def seen(reply: Reply) -> str:
    assert isinstance(reply, Shown), reply
    return reply.observation


def fault(reply: Reply) -> str:
    assert isinstance(reply, Failure), reply
    return reply.error.strip().splitlines()[-1]


def test_places_begin_their_own_tasks_and_step_apart(make_pool: MakePool) -> None:
    pool = make_pool()
    assert [seen(reply) for reply in pool.reset([10, 20, 30])] == ["10", "20", "30"]
    replies = pool.step({2: "up", 0: "stay"})
    assert {place: seen(reply) for place, reply in replies.items()} == {2: "31", 0: "10"}
    assert {place: reply.reward for place, reply in replies.items() if isinstance(reply, Shown)} == {2: 1.0, 0: 0.0}
    assert seen(pool.step({1: "up"})[1]) == "21"


def test_a_raising_environment_fails_alone_and_is_made_anew(make_pool: MakePool) -> None:
    pool = make_pool()
    pool.reset([10, 20, 30])
    replies = pool.step({0: "up", 1: "raise", 2: "up"})
    assert (seen(replies[0]), fault(replies[1]), seen(replies[2])) == ("11", "RuntimeError: planned", "31")
    assert [seen(reply) for reply in pool.reset([5, 6, 7])] == ["5", "6", "7"]


def test_an_endless_observation_is_a_fault(make_pool: MakePool) -> None:
    pool = make_pool()
    pool.reset([10])
    assert "10000000 characters" in fault(pool.step({0: "huge"})[0])


def test_an_environment_that_cannot_be_made_is_an_error_of_the_run(make_pool: MakePool) -> None:
    pool = make_pool(refuses=True)
    with pytest.raises(ArlError, match="cannot be made: ValueError: it refuses"):
        pool.reset([10])


def test_the_end_of_an_episode_is_told(make_pool: MakePool) -> None:
    pool = make_pool(length=1)
    pool.reset([10])
    reply = pool.step({0: "up"})[0]
    assert isinstance(reply, Shown)
    assert reply.over


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("exit", "worker process died, exit code 3"),
        ("kill", "worker process died, killed by signal 9"),
        ("hang", "did not answer within 0.5 s"),
    ],
)
def test_a_lost_worker_costs_one_episode_and_the_others_go_on_where_they_were(
    in_workers: MakePool, action: str, reason: str
) -> None:
    pool = in_workers(Workers(processes=1, step_timeout_s=0.5))
    pool.reset([10, 20, 30, 40])
    pool.step({0: "up", 1: "up", 2: "up", 3: "up"})
    replies = pool.step({0: "up", 1: action, 2: "up", 3: "stay"})  # place 0 answers before the fault, 2 and 3 after it
    assert reason in fault(replies[1])
    assert [seen(replies[place]) for place in (0, 2, 3)] == ["12", "32", "41"]
    replies = pool.step({0: "up", 2: "up", 3: "up"})
    assert [seen(replies[place]) for place in (0, 2, 3)] == ["13", "33", "42"]


def test_an_episode_that_is_over_is_not_played_again(in_workers: MakePool) -> None:
    pool = in_workers(Workers(processes=1), length=2, drifts=True)  # played again, it would be seen to drift
    pool.reset([10, 20])
    pool.step({0: "up"})
    pool.step({0: "up"})
    assert "exit code 3" in fault(pool.step({1: "exit"})[1])
    assert [seen(reply).split()[0] for reply in pool.reset([1, 2])] == ["1", "2"]


def test_an_environment_that_does_not_repeat_itself_is_not_brought_back(in_workers: MakePool) -> None:
    pool = in_workers(Workers(processes=1), drifts=True)
    pool.reset([10, 20, 30])
    replies = pool.step({0: "exit", 1: "up"})
    assert "did not show the same state" in fault(replies[1])
    assert "did not show the same state" in fault(pool.step({2: "up"})[2])
    assert "did not show the same state" in fault(pool.step({2: "up"})[2])  # until it is reset


def test_what_cannot_leave_the_worker_is_the_environments_fault(in_workers: MakePool) -> None:
    pool = in_workers(Workers(processes=1))
    pool.reset([10])
    assert "cannot leave its process" in fault(pool.step({0: "unpicklable"})[0])


def test_workers_are_processes_and_wear_out(in_workers: MakePool) -> None:
    pool = in_workers(Workers(processes=2, episodes_per_worker=4))
    pids = []
    for _ in range(3):  # two episodes a round and worker: worn out after the second round
        pool.reset([1, 2, 3, 4])
        pids.append([seen(reply) for _, reply in sorted(pool.step(dict.fromkeys(range(4), "pid")).items())])
    assert pids[0] == pids[1]
    assert pids[0][:2] == pids[0][2:]
    assert len({*pids[0], *pids[2], str(os.getpid())}) == 5


def test_closing_ends_the_workers_idle_or_not(in_workers: MakePool) -> None:
    pool = in_workers(Workers(processes=2))
    pool.reset([1, 2])
    pids = [int(seen(reply)) for reply in pool.step({0: "pid", 1: "pid"}).values()]
    started = time.monotonic()
    pool.close()
    pool.close()
    assert time.monotonic() - started < 5
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_chance_faults_end_only_the_episodes_they_hit(in_workers: MakePool) -> None:
    """Which episodes are hit is computed here from the same rule, apart from all processes."""
    pool = in_workers(Workers(processes=2, step_timeout_s=1.5), fault_share=0.05, length=6)
    seeds = list(range(100, 116))
    going = {place for place, reply in enumerate(pool.reset(seeds)) if isinstance(reply, Shown)}
    failed: dict[int, int] = {}
    for step in range(1, 7):
        for place, reply in pool.step(dict.fromkeys(going, "stay")).items():
            if isinstance(reply, Failure):
                failed[place] = step
                going.discard(place)
    assert failed == expected_failures(seeds, 6)
    assert len(failed) >= 2


def expected_failures(seeds: list[int], length: int) -> dict[int, int]:
    from faulty import FaultyEnv  # type: ignore[import-not-found]

    failures = {}
    for place, seed in enumerate(seeds):
        env = FaultyEnv(fault_share=0.05)
        env.reset(seed=seed)
        for step in range(1, length + 1):
            env.steps = step
            if env._by_chance() in ("raise", "hang", "exit", "huge"):
                failures[place] = step
                break
    return failures


def test_workers_options_out_of_range_are_refused() -> None:
    with pytest.raises(ArlError, match="out of range"):
        Workers(processes=0)
    with pytest.raises(ArlError, match="out of range"):
        Workers(step_timeout_s=0)
