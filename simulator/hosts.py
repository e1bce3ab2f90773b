"""The hosts on which ranks run, and the environment variables that launchers set there.

Hosts are equal, and ranks follow each other on them, as with all these launchers. Of a variable that also depends on a
cluster, such as the name of a partition, nothing is said. The sources: torch's `local_elastic_agent.py`; the output
variables in srun's manual; "Environment variables set for MPI applications" in Open MPI's; `prepare_multi_gpu_env` in
accelerate's `utils/launch.py`, which then runs torchrun; and `main` in DeepSpeed's `launcher/launch.py`.
"""

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

LOOPBACK = "127.0.0.1"
MASTER_PORT = "29500"
"""torchrun's default port. Nothing listens there: the rendezvous of a simulation happens in memory."""

TORCHRUN = "torchrun"
FRESH_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""The variable by which torchrun makes a new store for each attempt, instead of one that its agent keeps."""
LAUNCHERS_THAT_RESTART = (TORCHRUN, "accelerate")
MONITOR_SECONDS = 0.1
"""How long after the failure of a rank torchrun's agent ends the others; its `--monitor-interval`."""


class RankHost(NamedTuple):
    """The place of a rank: its host, and its number among the ranks there."""

    rank: int
    world_size: int
    nodes: int = 1
    restarts: int = 0
    """How often the ranks have been restarted so far."""
    max_restarts: int = 0

    @property
    def local_size(self) -> int:
        """The number of ranks on each host."""
        return self.world_size // self.nodes

    @property
    def number(self) -> int:
        """The number of the host."""
        return self.rank // self.local_size

    @property
    def local_rank(self) -> int:
        """The number of the rank among those on its host."""
        return self.rank % self.local_size

    @property
    def name(self) -> str:
        """The name of the host."""
        return host_name(self.number)

    @property
    def master(self) -> str:
        """The name of the first host, or the loopback address where there is only one."""
        return host_name(0) if self.nodes > 1 else LOOPBACK


def host_name(number: int) -> str:
    """Return the name of a simulated host."""
    return f"node{number}"


def host_address(number: int) -> str:
    """Return the address of a simulated host, which belongs to a private network."""
    return f"10.0.{number >> 8}.{(number & 255) + 1}"


def common_variables(at: RankHost) -> dict[str, str]:
    """Return the variables by which `init_process_group` finds the other ranks."""
    return {
        "RANK": str(at.rank),
        "LOCAL_RANK": str(at.local_rank),
        "WORLD_SIZE": str(at.world_size),
        "LOCAL_WORLD_SIZE": str(at.local_size),
        "MASTER_ADDR": at.master,
        "MASTER_PORT": MASTER_PORT,
    }


def torchrun_variables(at: RankHost) -> dict[str, str]:
    """Return the variables that torchrun sets."""
    return {
        **common_variables(at),
        "GROUP_RANK": str(at.number),
        "ROLE_RANK": str(at.rank),
        "ROLE_NAME": "default",
        "GROUP_WORLD_SIZE": str(at.nodes),
        "ROLE_WORLD_SIZE": str(at.world_size),
        "TORCHELASTIC_RESTART_COUNT": str(at.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(at.max_restarts),
        "TORCHELASTIC_RUN_ID": "ddpsim",
        "TORCHELASTIC_USE_AGENT_STORE": str(os.environ.get(FRESH_STORE) != "1"),
        "TORCHELASTIC_ERROR_FILE": os.devnull,  # torchrun's own is in a temporary folder; here nobody reads it
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
    }


def _accelerate_variables(at: RankHost) -> dict[str, str]:
    dynamo = {"BACKEND": "NO", "MODE": "default"} | dict.fromkeys(
        ("USE_FULLGRAPH", "USE_DYNAMIC", "USE_REGIONAL_COMPILATION"), "False"
    )
    own = {f"ACCELERATE_DYNAMO_{name}": value for name, value in dynamo.items()}
    return {**torchrun_variables(at), "ACCELERATE_MIXED_PRECISION": "no", **own}


def _deepspeed_variables(at: RankHost) -> dict[str, str]:
    given = common_variables(at)
    del given["LOCAL_WORLD_SIZE"]
    return {
        **given,
        "MASTER_ADDR": host_address(0) if at.nodes > 1 else LOOPBACK,
        "CROSS_RANK": str(at.number),
        "CROSS_SIZE": str(at.nodes),
        "LOCAL_SIZE": str(at.local_size),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(at.local_size))),
    }


def _slurm_variables(at: RankHost) -> dict[str, str]:
    size, nodes, address = str(at.world_size), str(at.nodes), host_address(0)
    of_each = f"{at.local_size}(x{nodes})" if at.nodes > 1 else str(at.local_size)
    names = f"node[0-{at.nodes - 1}]" if at.nodes > 1 else host_name(0)
    first = at.number * at.local_size
    return {
        **{f"SLURM_{name}": size for name in ("NTASKS", "NPROCS", "STEP_NUM_TASKS")},
        **{f"SLURM_{name}": nodes for name in ("NNODES", "JOB_NUM_NODES", "STEP_NUM_NODES")},
        **{f"SLURM_{name}": names for name in ("NODELIST", "JOB_NODELIST", "STEP_NODELIST")},
        **{f"SLURM_{name}": of_each for name in ("TASKS_PER_NODE", "STEP_TASKS_PER_NODE")},
        **{f"SLURM_{name}": address for name in ("LAUNCH_NODE_IPADDR", "SRUN_COMM_HOST")},
        **{f"SLURM_{name}": "1" for name in ("JOB_ID", "JOBID")},
        **{f"SLURM_{name}": "0" for name in ("STEP_ID", "STEPID")},
        "SLURM_PROCID": str(at.rank),
        "SLURM_LOCALID": str(at.local_rank),
        "SLURM_NODEID": str(at.number),
        "SLURM_GTIDS": ",".join(map(str, range(first, first + at.local_size))),
        "SLURM_TASK_PID": str(os.getpid()),
        "SLURMD_NODENAME": at.name,
    }


def _mpi_variables(at: RankHost) -> dict[str, str]:
    local = {"LOCAL_SIZE": at.local_size, "LOCAL_RANK": at.local_rank, "NODE_RANK": at.local_rank}
    world = {"SIZE": at.world_size, "RANK": at.rank, **local}
    return {
        **{f"OMPI_COMM_WORLD_{name}": str(value) for name, value in world.items()},
        "OMPI_UNIVERSE_SIZE": str(at.world_size),
    }


LAUNCHERS: Mapping[str, Callable[[RankHost], dict[str, str]]] = {
    TORCHRUN: torchrun_variables,
    "slurm": _slurm_variables,
    "mpi": _mpi_variables,
    "accelerate": _accelerate_variables,
    "deepspeed": _deepspeed_variables,
}
"""The variables that each launcher sets, by its name; `mpi` is that of Open MPI."""


def launcher_arguments(launcher: str, at: RankHost) -> tuple[str, ...]:
    """Return the arguments that a launcher puts before those of the program."""
    return (f"--local_rank={at.local_rank}",) if launcher == "deepspeed" else ()


def hosts_text(world_size: int, nodes: int) -> str:
    """Return which ranks run on which host, such as "ranks 0-1 on node0, 2-3 on node1"."""
    size = world_size // nodes
    spans = [(number * size, number * size + size - 1) for number in range(nodes)]
    texts = [f"{first}" if first == last else f"{first}-{last}" for first, last in spans]
    return "ranks " + ", ".join(f"{text} on {host_name(number)}" for number, text in enumerate(texts))
