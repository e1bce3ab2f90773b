"""Ranks that a program starts by torchrun's Python API (`elastic_launch`, `torch.distributed.run.main`).

torchrun's agent coordinates nodes, and starts and restarts a process for each rank. A simulation has one node and no
restarts, so the agent here only starts the ranks and collects their results. Command lines of Python run as by
`ddpsim run`.
"""

import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from typing import Any

import torch.distributed.launcher as launcher_package
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher import api as launcher_api

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.hosts import RankHost, torchrun_variables
from ddpsim.simulator.launching.launcher import Launcher
from ddpsim.simulator.launching.script import Script

LAUNCHERS = (launcher_api, launcher_package)
"""The modules in which torch keeps its function `launch_agent`."""

_HARMLESS = ("-u", "-B")
"""The options of Python that a rank's command line may have."""


class ElasticAgent:
    """Replaces torchrun's agent, the part of torchrun that starts the processes of ranks."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def launch_ranks(
        self, config: Any, entrypoint: Any, args: Sequence[Any], health_check_server: object = None
    ) -> Any:
        """Replace `launch_agent` of torch: start the ranks, wait for them, and return their results by rank."""
        if config.max_nodes != 1:
            self._launcher.reject_program(
                f"elastic_launch is called for {config.min_nodes} to {config.max_nodes} nodes, expected one: use "
                "max_nodes=1 or --nnodes 1"
            )
        size = int(config.nproc_per_node)
        own = {"ROLE_NAME": config.role, "TORCHELASTIC_RUN_ID": config.run_id or "none"}
        settings = [
            {**torchrun_variables(RankHost(rank, size, max_restarts=config.max_restarts)), **own}
            for rank in range(size)
        ]
        start = self._start_functions if callable(entrypoint) else self._start_commands
        sentinels, code_of, returned = start(config, entrypoint, args, settings)
        values = _collect_results(sentinels, returned)
        codes = [code_of(rank) for rank in range(size)]
        failures = {rank: ProcessFailure(rank, os.getpid(), code, "<N/A>") for rank, code in enumerate(codes) if code}
        if failures and config.max_restarts:
            print(
                f"ddpsim: torchrun would start these ranks again, {config.max_restarts} times at most (max_restarts), "
                "which is simulated by `ddpsim run --max-restarts` only",
                file=sys.stderr,
            )
        if failures:
            raise ChildFailedError(str(getattr(entrypoint, "__name__", entrypoint)), failures)
        return values

    def _start_functions(
        self, config: Any, function: Any, args: Sequence[Any], settings: "_Settings"
    ) -> "_StartedRanks":
        context: Any = multiprocessing.get_context(config.start_method)
        workers, returned = [], []
        for rank, own in enumerate(settings):
            receiving, sending = context.Pipe(duplex=False)
            worker = context.Process(target=_run_function, args=(rank, function, tuple(args), own, sending))
            worker.start()
            workers.append(worker)
            returned.append(receiving)

        def exit_code_of(rank: int) -> int:
            workers[rank].join()
            return int(workers[rank].exitcode)

        return [worker.sentinel for worker in workers], exit_code_of, returned

    def _start_commands(self, config: Any, command: str, args: Sequence[Any], settings: "_Settings") -> "_StartedRanks":
        program = self._parse_command((command, *map(str, args)))
        ranks = [self._launcher.start_command(program, own) for own in settings]
        return [rank.sentinel for rank in ranks], lambda rank: int(ranks[rank].wait() or 0), []

    def _parse_command(self, words: Sequence[str]) -> Script:
        """Parse a rank's command line. Raises an error if the command does not run Python."""
        command = list(words)
        if os.path.basename(words[0]).startswith("python") or words[0] == sys.executable:
            command = command[1:]
            while command and command[0] in _HARMLESS:
                command = command[1:]
        if not command or not (command[0] == "-m" or command[0].endswith(".py")):
            self._launcher.reject_program(
                f"elastic_launch starts the command {words[0]!r}, expected a function, or Python with a file or a "
                "module: start the ranks by one of these"
            )
        program = Script(tuple(command))
        try:
            program.check_source()
        except UsageError as error:
            self._launcher.reject_program(str(error))
        return program


_Settings = Sequence[Mapping[str, str]]
_StartedRanks = tuple[list[int], Callable[[int], int], list[Any]]
"""A sentinel (file) for each rank, a function that returns a rank's exit code, and the pipes for the results."""


def _collect_results(sentinels: Sequence[int], returned: Sequence[Any]) -> dict[int, Any]:
    """Wait for all ranks, and return their results. Results are read as they arrive, because a pipe holds little."""
    values: dict[int, Any] = dict.fromkeys(range(len(sentinels)))
    receivers = {receiver: rank for rank, receiver in enumerate(returned)}
    left = list(sentinels)
    while left:
        ready = connection.wait([*left, *receivers])
        for receiver in [each for each in receivers if each in ready]:
            values[receivers.pop(receiver)] = _receive_result(receiver)
        left = [each for each in left if each not in ready]
    for receiver, rank in receivers.items():
        if receiver.poll():
            values[rank] = _receive_result(receiver)
    return values


def _receive_result(receiver: Any) -> Any:
    try:
        return pickle.loads(receiver.recv_bytes())
    except EOFError:  # the rank has returned nothing
        return None


def _run_function(rank: int, function: Any, args: Sequence[Any], settings: Mapping[str, str], sending: Any) -> None:
    __tracebackhide__ = True
    os.environ.update(settings)
    sending.send_bytes(pickle.dumps(function(*args)))  # pickled here: a tensor's shared memory ends with the rank
