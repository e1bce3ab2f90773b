"""Runs programs that start their ranks themselves, for the coordinator; `launcher.py` runs in their processes.

Which programs may do so is detected from their source and the project files that they import. Such a program first runs
as its own launcher. If it then starts no rank, its beginning runs a second time. So importing multiprocessing is not
enough, nor is starting a process that makes no group, such as a logger or a monitor.
"""

import ast
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.hosts import TORCHRUN
from ddpsim.simulator.launching import launcher_line
from ddpsim.simulator.launching.program_files import project_files
from ddpsim.simulator.launching.program_ranks import Guardian, adopting_orphans, start_launcher
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.rank_processes.channel import MessageChannel, PacketConnection, readable_files
from ddpsim.simulator.rank_processes.children import ChildProcess
from ddpsim.simulator.rank_processes.external_processes import ExternalProcesses
from ddpsim.simulator.rank_processes.messages import unpickle_value
from ddpsim.simulator.rank_processes.parcels import SharedArena
from ddpsim.simulator.rank_processes.process_config import ProcessConfig, fields_for_launched_rank
from ddpsim.simulator.rank_processes.rank_files import RankFiles
from ddpsim.simulator.runtime.outcome import RaisedError

_PROCESS = "Process"
_STARTS = frozenset({
    *("spawn", "start_processes", _PROCESS),
    *("elastic_launch", "launch_agent"),
    *("notebook_launcher", "debug_launcher"),
})  # fmt: skip

_STRATEGIES = ("ddp_spawn", "ddp_fork", "ddp_notebook")
"""The names of a Trainer's strategies that start processes."""

_IS_WORTH_READING = re.compile(rf"\b({'|'.join([*_STARTS, *_STRATEGIES])}|distributed\W+(run|import\s+run))\w*")

_OF_RANKS = frozenset({
    *("dist", "distributed", "c10d", "idist", "deepspeed", "horovod"),
    *("init_process_group", "init_device_mesh", "DistributedDataParallel", "DDP", "FSDP", "fully_shard"),
    *("Accelerator", "PartialState", "Fabric", "Trainer"),
})  # fmt: skip
"""Names that occur in a function that makes a process group, or calls code that makes one."""

_HARMLESS_PACKAGES = frozenset({*sys.stdlib_module_names, "torch", "numpy"}) - {"importlib", "runpy", "subprocess"}
"""Packages whose functions make no process group, except functions with the names above."""

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def may_start_own_ranks(program: Script) -> bool:
    """Return whether a program, or a file of its project that it imports, may start ranks."""
    trees: dict[str, ast.AST] = {}
    processes: list[ast.Call] = []
    for file, text, tree in project_files(program):
        trees[file] = tree
        if _IS_WORTH_READING.search(text):
            nodes = list(ast.walk(tree))
            if any(map(_starts_ranks, nodes)) or any(map(_names_strategy, nodes)):
                return True
            calls = [node for node in nodes if isinstance(node, ast.Call)]
            processes += [call for call in calls if _referenced_name(call.func) == _PROCESS]
    return bool(processes) and any(map(ProjectDefinitions(trees).may_start_rank, processes))


def uses_trainer_strategy(program: Script) -> bool:
    """Return whether a Trainer in the program may start ranks; under torchrun's environment, it starts none."""
    trees = (tree for _, text, tree in project_files(program) if _IS_WORTH_READING.search(text))
    return any(any(map(_names_strategy, ast.walk(tree))) for tree in trees)


def _starts_ranks(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return _referenced_name(node.func) in _STARTS - {_PROCESS}
    if isinstance(node, ast.ImportFrom):  # imported under another name
        is_run = node.module == "torch.distributed" and any(each.name == "run" for each in node.names)
        is_of_run = node.module == "torch.distributed.run"
        return is_run or is_of_run or any(each.name in _STARTS and each.asname for each in node.names)
    if isinstance(node, ast.Import):
        return any(each.name == "torch.distributed.run" for each in node.names)
    return False


def _names_strategy(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(_STRATEGIES)


class ProjectDefinitions:
    """The functions, classes and imports in the files of a program."""

    def __init__(self, trees: Mapping[str, ast.AST]) -> None:
        self._definitions: dict[str, list[_Definition]] = {}
        self._modules: dict[str, set[str]] = {}
        """By each name that an import binds, the modules from which the name may come."""
        self._own = {part for file in trees for part in file.removesuffix(".py").split("/")[-2:]}
        """The names of the project's modules and packages."""
        for tree in trees.values():
            for node in ast.walk(tree):
                if isinstance(node, _Definition):
                    self._definitions.setdefault(node.name, []).append(node)
                for name, module in _imported_names(node):
                    self._modules.setdefault(name, set()).add(module)

    def may_start_rank(self, call: ast.Call) -> bool:
        """Return whether a call of `Process` may start a rank: its target makes a group, or calls unknown code."""
        given = [each.value for each in call.keywords if each.arg == "target"] or call.args[1:2]
        if not given:
            return any(each.arg is None for each in call.keywords)  # psutil.Process(pid) starts none
        todo: list[ast.AST] = [given[0]] if isinstance(given[0], ast.Lambda) else []
        if not todo:
            todo += self._definitions.get(_referenced_name(given[0]), ())
        if not todo:
            return True
        seen: set[ast.AST] = set()
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                names = set(_referenced_names(node))
                if names & _OF_RANKS or any(self._is_unknown_name(name) for name in names):
                    return True
                todo += [each for name in names for each in self._definitions.get(name, ())]
        return False

    def _is_unknown_name(self, name: str) -> bool:
        """Return whether a name is imported from a package whose functions may make process groups."""
        if name in self._definitions:
            return False
        roots = {module.split(".")[0] for module in self._modules.get(name, ())}
        return bool(roots - _HARMLESS_PACKAGES - self._own - {""})


def _referenced_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _referenced_names(node: ast.AST) -> Iterator[str]:
    """Yield all names that a definition in the program uses, and the parts of the modules that it imports."""
    for each in ast.walk(node):
        if isinstance(each, (ast.Name, ast.Attribute)):
            yield _referenced_name(each)
        for name, module in _imported_names(each):
            yield name
            yield from module.split(".")


def _imported_names(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each name that an import binds, and the module it comes from; "" for a relative import."""
    if isinstance(node, ast.Import):
        for each in node.names:
            yield (each.asname or each.name.split(".")[0]), each.name
    elif isinstance(node, ast.ImportFrom):
        for each in node.names:
            yield (each.asname or each.name), "" if node.level else (node.module or "")


_POLL_SECONDS = 0.1
_FEWER_RANKS_IDLE_SECONDS = 5.0
"""The same while it has started fewer ranks than expected: it may wait for the disk, to load what starts the next."""
_IDLE_SECONDS = 1.0
"""A launcher without CPU use for this long after it started ranks waits in a way that ddpsim does not replace."""


class LauncherRun:
    """A run of a program that starts its ranks itself (a launcher), and of these ranks."""

    def __init__(self, config: ProcessConfig) -> None:
        """Start the program. Raises UsageError if the system starts no process."""
        self.children: list[ChildProcess] = []
        self._world_size = config.world_size
        self._exit_files: list[int] = []
        """The pipes from which the launcher reads the exit codes of the ranks."""
        self._guardian = Guardian()
        self._line, theirs = PacketConnection.pair()
        self._adopting = ExitStack()
        self._adopting.enter_context(adopting_orphans())
        try:
            self._launcher = start_launcher(config, self._guardian, theirs.fileno())
        except BaseException:
            self._adopting.close()
            self._line.close()
            self._guardian.kill_groups()
            raise
        finally:
            theirs.close()

    def await_ranks(self, seconds: float) -> bool:
        """Wait until all ranks are started; return whether the program has started any."""
        end = time.monotonic() + seconds
        idle_since, cpu = time.monotonic(), 0.0
        with self._adopting:
            while time.monotonic() < end:
                message = self._receive_message(_POLL_SECONDS)
                if isinstance(message, launcher_line.BeginRanks):
                    return True
                if isinstance(message, launcher_line.LaunchRejected):
                    raise UsageError(message.line)
                if isinstance(message, launcher_line.ProgramEnded) and message.raised and message.is_starting:
                    where = f" at {message.raised.site}" if message.raised.site else ""
                    raise UsageError(f"the program could not start its ranks{where}: {message.raised.line}")
                if message is not None and not isinstance(message, launcher_line.StartedRank):
                    break
                now = self._launcher.core_seconds()
                if now - cpu > _POLL_SECONDS / 10 or message is not None:
                    idle_since, cpu = time.monotonic(), now
                elif self.children and time.monotonic() - idle_since > self._idle_seconds():
                    return True
        return bool(self.children)

    def _idle_seconds(self) -> float:
        return _IDLE_SECONDS if len(self.children) == self._world_size else _FEWER_RANKS_IDLE_SECONDS

    def _receive_message(self, seconds: float) -> Any:
        """Wait for a message of the launcher, and return it; None if no message arrives in time."""
        if not readable_files([self._line], seconds):
            return None
        message, files = self._line.receive()
        if isinstance(message, launcher_line.StartedRank):
            channel, arena, *own, exit_file = files
            end = MessageChannel(socket.socket(fileno=channel))
            rank = len(self.children)
            self.children.append(ChildProcess(rank, message.pid, end, SharedArena(file=arena), RankFiles(*own)))
            self._exit_files.append(exit_file)
            self._guardian.add_process_group(message.pid)
            os.close(arena)
        if message is None:
            self._launcher.raise_internal_error()
            return launcher_line.ProgramEnded(None)
        return message

    def configure_ranks(self, config: ProcessConfig) -> list[ChildProcess]:
        """Send the ranks their configuration, and return the processes of the ranks."""
        for child in self.children:
            with suppress(OSError):  # the rank is gone, which the coordinator notices
                child.channel.send(fields_for_launched_rank(config))
        return self.children

    def forward_output(self) -> None:
        """Copy the launcher's output to the caller's own streams."""
        for stream, text in zip((sys.stdout, sys.stderr), self._launcher.new_output(), strict=True):
            stream.write(text)

    def finish_program(self, seconds: float) -> RaisedError | None:
        """After the ranks have ended: run the program to its end, and return its exception."""
        for child, exit_file in zip(self.children, self._exit_files, strict=True):
            with suppress(OSError):
                os.write(exit_file, launcher_line.EXIT_CODE.pack(_exit_code(child)))
            os.close(exit_file)
        self._exit_files = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            message = self._receive_message(_POLL_SECONDS)
            if isinstance(message, launcher_line.LaunchRejected):
                raise UsageError(message.line)
            if isinstance(message, launcher_line.SecondStartReport):
                raise UsageError(
                    "the program starts ranks a second time, expected one world of ranks in a run, which has one "
                    "schedule and one trace: let one start do both, or run each by itself, by an argument"
                )
            if isinstance(message, launcher_line.ProgramEnded):
                return message.raised
        return None

    def discard_program(self) -> None:
        """End a program that has started no ranks, and discard its output: the program runs again as each rank."""
        self._launcher.kill_process()
        self._launcher.new_output()
        self.close()

    def close(self) -> None:
        """End the launcher and its ranks, and release their files."""
        for child in (self._launcher, *self.children):
            child.kill_process()
        self.forward_output()
        for child in (self._launcher, *self.children):
            child.release_resources()
        self._line.close()
        for exit_file in self._exit_files:
            os.close(exit_file)
        self._guardian.kill_groups()


def start_own_ranks(config: ProcessConfig, seconds: float, external_processes: ExternalProcesses) -> LauncherRun | None:
    """Run a program until it has started its ranks, and return that run; None if it does not start ranks itself."""
    program = config.program
    if not isinstance(program, Script) or not may_start_own_ranks(program):
        return None
    hosts = config.start.nodes, config.start.launcher
    launch = LauncherRun(config._replace(is_launched=uses_trainer_strategy(program)))
    try:
        if launch.await_ranks(seconds):
            if hosts != (1, TORCHRUN):
                raise UsageError(
                    "the program starts its ranks itself, which is simulated on one host and without a launcher: "
                    "leave --nnodes and --launcher out"
                )
            if len(launch.children) == config.world_size or program.counts_ranks:
                launch.forward_output()
                return launch
            count = len(launch.children)
            raise UsageError(
                f"the program starts {count} rank{'' if count == 1 else 's'} itself, expected {config.world_size}: "
                f"take world size {count} (--world-size {count})"
            )
        external_processes.raise_if_reported()
    except BaseException:
        launch.close()
        raise
    launch.discard_program()
    return None


def _exit_code(child: ChildProcess) -> int:
    """Return the exit code of a rank as multiprocessing defines it."""
    if child.ended is None:
        return 1 if child.status is None else os.waitstatus_to_exitcode(child.status)
    if not child.ended.error:
        return 0
    try:
        error = unpickle_value(child.ended.error)
    except Exception:  # its class exists only in the rank
        return 1
    return error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
