"""`python -m arl_lightning` is `arl`."""

from arl_lightning.cli import main

main()
