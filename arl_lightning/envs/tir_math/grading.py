"""Grades of answers, from a worker process that is bounded, restarted when it dies, and gone with its owner."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from arl_lightning.envs.tir_math.grading_worker import OVERRUN, RAISED, READY, RIGHT, WRONG, readable
from arl_lightning.envs.tir_math.judges import Key, same_text
from arl_lightning.types import ArlError

_logger = logging.getLogger(__name__)
_WORKER = "arl_lightning.envs.tir_math.grading_worker"
_PACKAGE_ROOT = Path(__file__).parents[3]
_START_S = 120.0  # loading sympy takes a second, on a busy machine many
_SLACK_S = 60.0  # a worker that late over its own limit is taken for dead; a busy machine loads libraries slowly


class Grader:
    """Says whether answers are right, one at a time; may be called from any thread.

    The worker starts with the first answer that is not the key's very text.

    Args:
        limit_s: wall-clock seconds for one answer; one that needs more is wrong.
        max_answer: characters of the longest answer that is looked at; a longer one is wrong.
    """

    def __init__(self, limit_s: float = 1.0, max_answer: int = 200) -> None:
        self.limit_s = limit_s
        self.max_answer = max_answer
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[bytes] | None = None

    def grade(self, key: Key, answer: str) -> bool:
        """True when the answer is right; an answer that stalls or breaks the judge is wrong.

        Raises:
            ArlError: the worker cannot start.
            RuntimeError: the worker died twice over one answer.
        """
        if len(answer) > self.max_answer:
            return False
        if same_text(key.answer, answer):
            return True
        request = pickle.dumps((key, answer, self.limit_s))
        with self._lock:
            verdict = self._exchange(request) or self._exchange(request)
        if verdict.startswith(RAISED):
            _logger.warning("Grading %r raised %s: it counts as wrong.", answer, verdict[len(RAISED) :].decode())
        elif verdict not in (RIGHT, WRONG, OVERRUN):
            raise RuntimeError(f"The grading worker died twice over the answer {answer!r}.")
        return verdict == RIGHT

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker, None while there is none."""
        return None if self._worker is None else self._worker.pid

    def close(self) -> None:
        """The worker is gone; the next answer would start another."""
        with self._lock:
            self._stop()

    def _exchange(self, request: bytes) -> bytes:
        """The worker's line about the request; empty, and no worker, when it died or hung."""
        worker = self._worker = self._worker or self._start()
        assert worker.stdin
        assert worker.stdout
        with suppress(BrokenPipeError):
            worker.stdin.write(request)
            worker.stdin.flush()
            if readable(worker.stdout.fileno(), self.limit_s + _SLACK_S) and (verdict := worker.stdout.readline()):
                return verdict
        self._stop()
        return b""

    def _start(self) -> subprocess.Popen[bytes]:
        paths = [str(_PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        worker = subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
            [sys.executable, "-P", "-m", _WORKER, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        )
        assert worker.stdout
        assert worker.stderr
        if readable(worker.stdout.fileno(), _START_S) and worker.stdout.readline() == READY:
            return worker
        worker.kill()
        said = worker.communicate()[1].decode(errors="replace").strip().rpartition("\n")[2]
        raise ArlError(f"The grading worker did not start ({said}): pip install 'arl-lightning[math]'.")

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            with suppress(BrokenPipeError):  # bytes that the dead worker never read
                self._worker.communicate()
            self._worker = None
