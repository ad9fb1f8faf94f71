import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from arl_lightning.envs.tir_math import grading
from arl_lightning.envs.tir_math.grading import Grader
from arl_lightning.envs.tir_math.judges import Key
from arl_lightning.types import ArlError

HALF = Key("\\frac{1}{2}")


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    """One for all tests: its start takes a second or two."""
    made = Grader()
    yield made
    made.close()


def alive(pid: int) -> bool:
    """Zombies do not live."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, within_s: float = 20.0) -> bool:
    deadline = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def test_answers_are_graded_in_another_process(grader: Grader) -> None:
    assert grader.grade(HALF, "0.5")
    assert not grader.grade(HALF, "0.6")
    assert grader.worker_pid not in (None, os.getpid())


def test_the_key_s_own_words_need_no_worker() -> None:
    idle = Grader()
    assert idle.grade(HALF, " \\frac{1}{2}.")
    assert idle.worker_pid is None


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "\\sum_{n=1}^{10^{10}} \\frac{1}{n}"])
def test_a_hostile_answer_is_wrong_within_its_limit_and_stalls_nobody(grader: Grader, answer: str) -> None:
    grader.grade(HALF, "0.5")
    worker, begin = grader.worker_pid, time.monotonic()
    assert not grader.grade(HALF, answer)
    assert time.monotonic() - begin < 4.0  # 1 s, and what a busy machine takes on top
    assert grader.worker_pid == worker
    assert grader.grade(HALF, "0.5")


def test_a_long_answer_is_wrong_unseen() -> None:
    idle = Grader(max_answer=200)
    assert not idle.grade(Key("1" * 201), "1" * 201)
    assert idle.grade(Key("1" * 200), "1" * 200)
    assert idle.worker_pid is None


def test_threads_share_a_worker(grader: Grader) -> None:
    answers = ["0.5", "0.6", "50\\%", "2"] * 5
    with ThreadPoolExecutor(4) as threads:
        grades = list(threads.map(lambda answer: grader.grade(HALF, answer), answers))
    assert grades == [True, False, True, False] * 5


def test_a_judge_that_raises_counts_as_wrong_and_is_told(grader: Grader, caplog: pytest.LogCaptureFixture) -> None:
    assert not grader.grade(Key("a b", "no_such_generator"), "0.5")
    assert "no_such_generator" in caplog.text


def test_a_killed_worker_is_replaced_and_the_grade_still_comes(grader: Grader) -> None:
    assert grader.grade(HALF, "0.5")
    first = grader.worker_pid
    assert first
    os.kill(first, signal.SIGKILL)
    assert grader.grade(HALF, "0.5")
    second = grader.worker_pid
    assert second
    assert second != first
    grader.close()
    grader.close()
    assert gone(first)
    assert gone(second)
    assert grader.worker_pid is None


def test_the_worker_dies_with_its_parent_even_when_a_fork_holds_its_pipe() -> None:
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        orphan = Grader()
        orphan.grade(HALF, "0.5")
        sibling = os.fork()
        if sibling == 0:
            os.close(writer)
            time.sleep(60)
            os._exit(0)
        os.write(writer, f"{orphan.worker_pid} {sibling}".encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(writer)
    os.waitpid(parent, 0)
    with os.fdopen(reader) as said:
        worker, sibling = map(int, said.read().split())
    left = not gone(worker)
    os.kill(sibling, signal.SIGKILL)
    assert not left


def test_a_worker_that_cannot_start_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "_WORKER", "arl_lightning.no_such_module")
    with pytest.raises(ArlError, match=r"no_such_module.*pip install"):
        Grader().grade(HALF, "0.5")
