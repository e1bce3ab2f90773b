"""Threads that tests start, inside ranks and beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def start(function: Callable[..., Any], *args: Any, **options: Any) -> threading.Thread:
    """Start a thread that calls the function; the options are those of `threading.Thread`."""
    thread = threading.Thread(target=function, args=args, **options)
    thread.start()
    return thread


def beside(*functions: Callable[[], Any]) -> None:
    """Run functions on threads of their own, to their end."""
    threads = [start(function) for function in functions]
    for thread in threads:
        thread.join()
