"""Find the training program in a command line.

As with python and torchrun, all words after the program's name are the program's arguments. The fork servers, from
which the ranks are forked, are started before this process imports torch.
"""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

from typer.models import OptionInfo

from ddpsim.scenarios.cli import output
from ddpsim.simulator.errors import ReplayError, UsageError
from ddpsim.simulator.imports import pause_garbage_collection

if TYPE_CHECKING:
    from ddpsim import Result
    from ddpsim.scenarios.model import Scenario

_TOKEN = re.compile(r"s\d+:")
_REFUSED = 2
"""The exit status of a program that refuses its arguments; argparse, click and fire use the same."""
_RUNS_NO_PROGRAM = ("-h", "--help", "processes", "--transport=processes", "--torchrun")
"""Words in a command line which show that the command runs no program, so no fork server is needed."""


def join_program_into_one_word(words: Sequence[str], taking_values: Collection[str] = ()) -> list[str]:
    """Return the command line for typer: the program and its arguments joined into one word after `--`.

    `run --world-size 2 train.py --epochs 1` becomes `run --world-size 2 -- "train.py --epochs 1"`. A replay token is
    moved behind the program. The word after one of the options `taking_values` is never taken for the program.
    """
    for index, word in enumerate(words):
        if words[index - 1] in taking_values:
            continue
        if word == "-m" or (word.endswith(".py") and not word.startswith("-")):
            tokens = [word for word in words[:index] if _TOKEN.match(word)]
            options = [word for word in words[:index] if word not in tokens]
            return [*options, "--", shlex.join(words[index:]), *tokens]
    return list(words)


_COUNTED = re.compile(r"--(nproc[-_]per[-_]node|nnodes|world-size)(=.*)?", re.DOTALL)


def multiply_ranks_by_hosts(words: Sequence[str]) -> list[str]:
    """Return the command line with the number of all ranks for torchrun's number of ranks on each host.

    Raises UsageError if a world size is given that differs, and for words of torchrun that are no number.
    """
    end = words.index("--") if "--" in words else len(words)
    kept: list[str] = []
    given: dict[str, str] = {}
    left = iter(words[:end])
    for word in left:
        if (found := _COUNTED.fullmatch(word)) is None:
            kept.append(word)
            continue
        name = found[1].replace("_", "-")
        given[name] = found[2][1:] if found[2] else next(left, "")
        if name != "world-size" and not given[name].isdecimal():
            expected = "a number, as nodes neither come nor leave" if ":" in given[name] else "a number"
            raise UsageError(f"--{name} is {given[name]!r}, expected {expected}: correct it")
    if "nproc-per-node" not in given:
        return list(words)
    size = str(int(given["nproc-per-node"]) * int(given.get("nnodes", 1)))
    if given.get("world-size", size) != size:
        raise UsageError(
            f"--world-size is {given['world-size']}, but --nnodes and --nproc-per-node give {size} ranks: leave "
            "--world-size out"
        )
    hosts = ["--nnodes", given["nnodes"]] if "nnodes" in given else []
    return [*kept, *hosts, "--world-size", size, *words[end:]]


def start_fork_servers(words: Sequence[str], own_hash_seed: int | None = None) -> None:
    """Start the servers that ranks are forked from, if the command line has a program. A command that has the hash seed
    of one forks that one from itself, when it has imported torch (`importing_simulator`).

    The program is found as in `join_program_into_one_word`; the result is a guess. An unneeded server does no harm, and
    a missing server is started later. Each server takes a second or two to start, so all start at the same time.
    """
    if words[:1] == ["serve"]:
        from ddpsim.simulator.launching.servers import STANDING

        STANDING.own_hash_seed = own_hash_seed
    if "--" not in words or any(word in words for word in _RUNS_NO_PROGRAM):
        return
    from ddpsim.simulator.choices import seeds_in_token
    from ddpsim.simulator.launching.program_files import may_need_dynamo
    from ddpsim.simulator.launching.script import Script, program_seeds
    from ddpsim.simulator.launching.servers import STANDING, server_keys

    end = words.index("--")
    options, program, tokens = words[:end], Script(tuple(shlex.split(words[end + 1]))), words[end + 2 :]
    try:
        program.check_source()
        start = (seeds_in_token(tokens[0]) if tokens else None) or program_seeds("--alike" in options)
        preload = [value for option, value in pairwise(options) if option == "--preload"]
        keys, wants_dynamo = server_keys(program, start.hash_seeds, preload), may_need_dynamo(program)
        if own := next((key for key in keys if key.hash_seed == own_hash_seed), None):
            STANDING.prepare_fork(own, wants_dynamo=wants_dynamo)
        STANDING.start_servers([key for key in keys if key is not own], wants_dynamo=wants_dynamo)
    except (UsageError, ReplayError, OSError):  # the command reports it
        return


@contextmanager
def importing_simulator() -> Iterator[None]:
    """Import the simulator in the `with` block of a command; afterwards fork the server that was prepared, if any."""
    servers: Any = sys.modules.get("ddpsim.simulator.launching.servers")
    forks = servers is not None and servers.STANDING.was_prepared
    with pause_garbage_collection(), servers.imports_for_forks() if forks else nullcontext():
        yield
    if forks:
        servers.STANDING.fork_prepared_server()


def note_trailing_options(scenario: Scenario, command: Callable[..., Any], result: Result | None) -> None:
    """Print which ddpsim options are written after the program, if the program refused them or reads no arguments."""
    from ddpsim.simulator.launching.program_files import ignores_arguments
    from ddpsim.simulator.launching.script import Script

    program = scenario.program
    if result is None or not isinstance(program, Script):
        return
    trailing = trailing_options(program.arguments, takes_value_by_option(command))
    text = program.source_text()
    names = [word.partition("=")[0] for word in trailing if word.startswith("-")]
    if not names or all(name in text for name in names):
        return
    # A rank exited as argparse does for wrong arguments, or its error names one of the options.
    has_refused = any(
        error.code == _REFUSED if isinstance(error, SystemExit) else any(name in str(error) for name in names)
        for error in result.errors.values()
    )
    if has_refused or ignores_arguments(program):
        output.print_note(
            f"{shlex.join(trailing)} is written after {program.target}, so the program receives it; if it is for "
            f"ddpsim {command.__name__}, write it before {program.target}"
        )


def trailing_options(arguments: Sequence[str], options: Mapping[str, bool]) -> list[str]:
    """Return the words among a program's arguments that are options of the ddpsim command, with the options' values."""
    found: list[str] = []
    takes_value = False
    for word in arguments:
        name, equals, _ = word.partition("=")
        if takes_value or name in options:
            found.append(word)
        takes_value = name in options and options[name] and not equals
    return found


def takes_value_by_option(command: Callable[..., Any]) -> dict[str, bool]:
    """Return the options of a command, by name: True for an option that takes a value, False for a flag."""
    found = {}
    # Not get_type_hints: Python 3.10 wraps a parameter whose default is None in Optional.
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind, *marks = get_args(parameter.annotation)
        for mark in marks:
            if isinstance(mark, OptionInfo):
                # Inside Annotated, typer stores the first name of an option as its default.
                names = [each for each in (mark.default, *(mark.param_decls or ())) if isinstance(each, str)]
                for name in names or [f"--{parameter.name.replace('_', '-')}"]:
                    found[name] = kind is not bool
    return found
