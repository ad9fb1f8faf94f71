"""Optional libraries, asked for when they are needed."""

from __future__ import annotations

import importlib
from types import ModuleType

from arl_lightning.types import ArlError


def load_extra(module: str, extra: str) -> ModuleType:
    """The module of an optional dependency.

    Args:
        module: name to import.
        extra: the extra of this package that installs it.

    Raises:
        ArlError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # it is there, but broken
        raise ArlError(f"{module} is not installed: pip install 'arl-lightning[{extra}]'") from error
