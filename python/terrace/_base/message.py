"""What the package says without being asked: through the logger `terrace`, at
level INFO. Where no logging is configured it goes to standard error."""

from __future__ import annotations

import logging

logger = logging.getLogger('terrace')


def say(text: str, *arguments: object) -> None:
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter('terrace: %(message)s'))
        logger.addHandler(handler)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    logger.info(text, *arguments)
