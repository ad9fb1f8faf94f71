"""The command `arl`: its verbs, and errors as one sentence."""

from __future__ import annotations

import errno
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import auto_cli
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException

from arl_lightning.callbacks.safe_stop import SafeStop
from arl_lightning.command_line import ArlCLI, ArlParser, PlanningCLI, command
from arl_lightning.study.demo import demo
from arl_lightning.study.patient import plan_for
from arl_lightning.study.view import view
from arl_lightning.types import ArlError

_NOISE = (
    ".*args parameter is intended to run from within Python.*",  # `main(args)` is
    ".*does not have many workers.*",  # play needs the weights of this process
    ".*exists and is not empty.*",  # a resumed run
    r".*module\(s\) in eval mode.*",  # the reference is meant to be
    ".*your dataloader is not resumable.*",  # the data module is
    ".*The checkpoint will contain the model state AFTER optimization.*",  # as it should
    r".*It is recommended to use .self\.log.*sync_dist=True.*",  # what is logged is of all processes already
    ".*LeafSpec.*is deprecated.*",
)


def _quiet() -> None:
    """Silences advice that is not for this program's user."""
    for message in _NOISE:
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(lambda record: "Tip:" not in record.msg)


def _plan(words: Sequence[str], start_words: Sequence[str] | None) -> str:
    """The memory plan of a command in one line, or why there is none; nothing is run.

    `start_words` is the command whose model it starts from, where that is not there yet.
    """
    made = command(PlanningCLI, words)
    if start_words is not None:
        made.model.source = command(PlanningCLI, start_words).model.source
    try:
        return plan_for(made.trainer, made.model, made.datamodule).line()
    except ArlError as error:
        return f"no memory plan: {error}"


def main(args: Sequence[str] | None = None) -> None:
    """Runs `arl`; a fault that the user can mend is one sentence on stderr and exit code 1.

    With `ARL_TRACEBACK=1` in the environment the traceback is shown as well.
    """
    _quiet()
    sys.path.insert(0, str(Path.cwd()))  # so that `--data.task.env_id my_file:my/Env-v0` finds my_file.py
    words = list(sys.argv[1:] if args is None else args)
    if words[:1] == ["doctor"]:  # a switch, while options of jsonargparse take a value
        follows = [*words[1:], "--"]
        words = [f"{w}=true" if w == "--json" and n[:2] == "--" else w for w, n in zip(words, follows, strict=True)]
    with SafeStop() as stop:
        try:
            _run(words, stop)
        except SIGTERMException:
            print(f"arl: {stop.sentence()}", file=sys.stderr)
            sys.exit(128 + stop.received)
        except (ArlError, MisconfigurationException, OSError) as error:
            if os.environ.get("ARL_TRACEBACK"):
                raise
            print(f"arl: {_told(error)}", file=sys.stderr)
            sys.exit(1)


def _run(words: list[str], stop: SafeStop) -> None:
    verb, *rest = words or [""]
    if verb == "demo":
        auto_cli(demo, args=rest, parser_class=ArlParser)
    elif verb == "view":
        auto_cli(view, args=rest, parser_class=ArlParser)
    elif verb == "study":
        from arl_lightning.study.verbs import study_verbs  # its locks are not there on every system

        auto_cli(study_verbs(_plan), args=rest, parser_class=ArlParser)
    else:
        command(ArlCLI, words, stop)


def _told(error: Exception) -> str:
    """The fault in one sentence; of a disk that is full, also what to do."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
        return f"the run's folder can hold no more, {error.strerror}: make room, then continue with --ckpt_path last"
    return str(error)
