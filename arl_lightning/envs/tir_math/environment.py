"""Tool-integrated maths: the model writes programs, sees their output, and answers in a box."""

from __future__ import annotations

import os
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from arl_lightning.envs.sandbox.execution import Execution, Sandbox
from arl_lightning.envs.sandbox.fork_server import ForkServer
from arl_lightning.envs.tir_math.experts import answer_message, program_message, write_program
from arl_lightning.envs.tir_math.grading import Grader
from arl_lightning.envs.tir_math.judges import Key
from arl_lightning.envs.tir_math.leases import Lease, Shared
from arl_lightning.envs.tir_math.messages import read_message
from arl_lightning.envs.tir_math.problems import Problem, ProblemSource, generated_problems, require_split
from arl_lightning.envs.tir_math.tables import table_problems
from arl_lightning.types import ArlError

_VOID_SENTENCE = "Neither a Python block nor a boxed answer: the episode is over."
_ANSWERED_SENTENCE = "The answer is in: the episode is over."
_LONGEST_TEXT = 100_000  # characters; a bound that Gymnasium's spaces need and no message comes near


def _open_sandbox(options: tuple[float, int, int, bool]) -> Sandbox:
    timeout_s, memory_mb, max_output, unsafe = options
    return ForkServer(timeout_s=timeout_s, memory_mb=memory_mb, max_output=max_output, unsafe=unsafe)


SANDBOXES = Shared(_open_sandbox)
GRADERS: Shared[str, Grader] = Shared(lambda _: Grader())


class TIRMathEnv(gymnasium.Env[str, str]):
    r"""Maths problems; an action is the model's whole message of a turn.

    A message with a closed Python block runs it, and what it printed, or how it failed, is the next observation; the
    last of several blocks runs, and a box beside a program does not count. A message with `\boxed{…}` and no program is
    the answer and ends the episode. A message with neither is void: it ends the episode with reward 0, and
    `info["void"]` says so, so that such turns can be kept out of the loss. Programs share nothing: each starts anew.

    Answers to problems from a file are graded by math-verify, those to generated problems by the written number or the
    generator's own rule. The sandbox and the grading worker are shared by all environments of a process, started when
    first needed, and closed with the last environment that used them.

    Args:
        split: problems to draw from: `train`, `validation`, `test`, `demonstration`, or `all`; split by content.
        generators: names of reasoning-gym generators, or their configurations by name; null takes the default mix.
        problems: a `.jsonl` or `.parquet` file, a folder that `datasets` saved, or a data set's name on the hub, in
            place of generated problems; its own splits are kept, all else is split by a hash of the question.
        subset: configuration of a data set on the hub, such as `main`.
        question_column: column of the problem's text; null takes `question` or `problem`.
        answer_column: column of the answer; null takes `answer` or `solution`. What follows `####`, or stands in the
            last box, is the answer, otherwise the whole text.
        type_column: column of the task type; null takes `type` or `subject`, and `math` where there is neither.
        max_turns: steps after which an unanswered episode is truncated, at least 1.
        success_reward: reward of the right answer; everything else earns 0.
        max_output: characters of a program's output that are shown, at least 64.
        timeout_s: seconds that a program may run.
        memory_mb: MiB that a program may use.
        unsafe: run programs even where this machine cannot isolate them.
    """

    def __init__(
        self,
        split: str = "all",
        generators: Mapping[str, Mapping[str, Any]] | Sequence[str] | None = None,
        problems: str | None = None,
        subset: str | None = None,
        question_column: str | None = None,
        answer_column: str | None = None,
        type_column: str | None = None,
        max_turns: int = 5,
        success_reward: float = 1.0,
        max_output: int = 512,
        timeout_s: float = 5.0,
        memory_mb: int = 1024,
        unsafe: bool = False,
    ) -> None:
        require_split(split)
        if max_turns < 1 or max_output < 64 or timeout_s <= 0 or memory_mb < 1:
            raise ArlError(
                f"TIRMath needs max_turns >= 1, max_output >= 64, timeout_s > 0 and memory_mb >= 1, not {max_turns}, "
                f"{max_output}, {timeout_s} and {memory_mb}."
            )
        if problems is not None and generators is not None:
            raise ArlError("TIRMath takes `generators` or `problems`, not both: leave one out.")
        self._source: ProblemSource = (
            generated_problems(generators, split)
            if problems is None
            else table_problems(problems, subset, split, question_column, answer_column, type_column)
        )
        self.max_turns = max_turns
        self.success_reward = success_reward
        self.max_output = max_output
        self.observation_space = _AnyText(_LONGEST_TEXT, charset=string.printable)
        self.action_space = _AnyText(_LONGEST_TEXT, charset=string.printable)
        self._sandbox_options = (timeout_s, memory_mb, max_output, unsafe)
        self._sandbox: Lease[Sandbox] | None = None
        self._grader: Lease[Grader] | None = None
        self._episode: _Episode | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The problem of `seed`, or of the next seed that this environment's own generator draws; its text is shown.

        Args:
            seed: names the problem, at least 0.
            options: `problem`, a mapping with `question` and `answer`, is played in place of a drawn one.
        """
        super().reset(seed=seed)
        self._episode = _Episode(self._chosen_problem(seed, (options or {}).get("problem")))
        return self.problem.question, self._state()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """What the message brought: a program's output, or the end of the episode.

        Raises:
            ResetNeeded: the episode has not begun or is over.
        """
        episode = self._played()
        if episode.over:
            raise ResetNeeded("This TIRMath episode is over: reset before the next step.")
        message = read_message(action)
        if message.program is not None:
            execution = self.sandbox().run(message.program)
            episode.run(message.program, execution, _shown(execution, self.max_output), self.max_turns)
            return episode.seen, 0.0, False, episode.over, self._state(action_valid=True, void=False)
        if message.answer is None:
            episode.over = True
            return _VOID_SENTENCE, 0.0, True, False, self._state(action_valid=False, void=True)
        episode.success = self._leased_grader().grade(episode.problem.key, message.answer)
        episode.over = True
        reward = float(self.success_reward) if episode.success else 0.0
        return _ANSWERED_SENTENCE, reward, True, False, self._state(action_valid=True, void=False)

    def expert_actions(self) -> tuple[str, ...]:
        """The program that computes the answer, then its output in a box; empty where no expert knows how.

        Also empty when the episode is over, or has no turn left for the answer.
        """
        episode = self._played()
        key = episode.problem.key
        program = write_program(key.generator, episode.problem.question, key.metadata)
        if program is None or episode.over:
            return ()
        if episode.output is not None and episode.program == program:
            return (answer_message(episode.output),)
        return (program_message(program),) if episode.turns + 2 <= self.max_turns else ()

    def close(self) -> None:
        """Nothing of this environment's runs any more; the shared helpers end with the last that uses them."""
        for lease in (self._sandbox, self._grader):
            if lease is not None:
                lease.release()
        self._sandbox = self._grader = None
        super().close()

    @property
    def problem(self) -> Problem:
        """The present problem.

        Raises:
            ResetNeeded: there is none before the first reset.
        """
        return self._played().problem

    def sandbox(self) -> Sandbox:
        """The sandbox that runs programs, shared with all environments of the process that have the same options."""
        if self._sandbox is None or self._sandbox.pid != os.getpid():
            self._sandbox = SANDBOXES.lease(self, self._sandbox_options)
        return self._sandbox.thing

    def _chosen_problem(self, seed: int | None, given: Mapping[str, str] | None) -> Problem:
        if given is None:
            return self._source.problem(int(self.np_random.integers(2**63 - 1)) if seed is None else seed)
        if not {"question", "answer"} <= set(given):
            raise ArlError(f"The problem in the options needs a question and an answer, but has {sorted(given)}.")
        return Problem(given["question"], Key(given["answer"]), "math")

    def _leased_grader(self) -> Grader:
        if self._grader is None or self._grader.pid != os.getpid():
            self._grader = GRADERS.lease(self, "math")
        return self._grader.thing

    def _played(self) -> _Episode:
        if self._episode is None:
            raise ResetNeeded("TIRMath has no problem before its first reset.")
        return self._episode

    def _state(self, **of_step: bool) -> dict[str, Any]:
        episode = self._played()
        return {
            "success": episode.success,
            "state_key": (episode.problem.question, episode.seen),
            "admissible_actions": None,
            "task_type": episode.problem.task_type,
            **of_step,
        }


@dataclass(slots=True)
class _Episode:
    """How far one problem is: turns taken, and what the last program was, printed, and showed."""

    problem: Problem
    turns: int = 0
    over: bool = False
    success: bool = False
    program: str | None = None
    output: str | None = None
    seen: str = ""

    def run(self, program: str, execution: Execution, seen: str, max_turns: int) -> None:
        """A program has run, one more turn is taken, and the episode is over when it was the last."""
        self.turns += 1
        self.over = self.turns >= max_turns
        self.program, self.seen = program.strip(), seen
        self.output = execution.stdout.strip() if execution.ok else None


class _AnyText(Text):
    """Texts of any characters up to a length; samples come from the character set."""

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


def _shown(execution: Execution, max_output: int) -> str:
    """What the model is told of a run: what was printed, and the last line of the error if there was one."""
    printed = execution.stdout[:max_output].rstrip()
    error = execution.error.strip().rpartition("\n")[2][:max_output]
    parts = [f"Output:\n{printed}"] if printed else []
    if not execution.ok:
        parts.append(f"Error: {error}")
    return "\n".join(parts) or "Output: nothing was printed."
