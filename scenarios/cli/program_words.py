"""A program in the words of a command line: what follows its name is its own, as with python and torchrun."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence

_TAKE_PROGRAMS = ("run", "explore", "fuzz", "replay", "debug", "shrink")
_TOKEN = re.compile(r"s\d+:")


def with_program_as_one_word(words: Sequence[str], taking_values: Collection[str] = ()) -> list[str]:
    """The words as the commands take them: the program and all that follows it are one argument, the first.

    `taking_values` are the options of the command whose next word is their value, and no program.

    `run --world-size 2 train.py --epochs 1` becomes `run --world-size 2 -- "train.py --epochs 1"`, and a replay token
    comes behind it.
    """
    if words and words[0] in _TAKE_PROGRAMS:
        for index, word in enumerate(words):
            if words[index - 1] in taking_values:
                continue
            if word == "-m" or (word.endswith(".py") and not word.startswith("-")):
                tokens = [word for word in words[:index] if _TOKEN.match(word)]
                options = [word for word in words[:index] if word not in tokens]
                return [*options, "--", shlex.join(words[index:]), *tokens]
    return list(words)
