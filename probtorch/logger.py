"""Pyro's logger for scripts: `from probtorch.logger import log`.

Nothing in this library writes to it. It says what a script tells it, from INFO on, on stderr; if
logging was set up before, it hands on to those handlers instead.
"""

import logging

__all__ = ["default_format", "log"]

default_format = "%(levelname)s \t %(message)s"
log = logging.getLogger("probtorch")
log.setLevel(logging.INFO)

if not logging.root.handlers and not log.handlers:
    default_handler = logging.StreamHandler()
    default_handler.setLevel(logging.INFO)
    default_handler.setFormatter(logging.Formatter(default_format))
    log.addHandler(default_handler)
    log.propagate = False
