"""The hosts of ranks, and the variables of launchers. Values are those of real launchers, see `simulator/hosts.py`."""

from ddpsim.simulator.choices import RankSeeds
from ddpsim.simulator.hosts import LAUNCHERS, RankHost, hosts_text, launcher_arguments
from tests.kit.rows import rows

AT = RankHost(rank=3, world_size=4, nodes=2)
OF_RANK_3 = {
    "torchrun": "RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node0 GROUP_RANK=1 GROUP_WORLD_SIZE=2 "
    "ROLE_RANK=3 ROLE_WORLD_SIZE=4 ROLE_NAME=default TORCHELASTIC_RESTART_COUNT=0",
    "accelerate": "RANK=3 LOCAL_RANK=1 GROUP_RANK=1 ACCELERATE_MIXED_PRECISION=no ACCELERATE_DYNAMO_BACKEND=NO",
    "deepspeed": "RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 LOCAL_SIZE=2 CROSS_RANK=1 CROSS_SIZE=2 MASTER_ADDR=10.0.0.1 "
    "MASTER_PORT=29500 CUDA_VISIBLE_DEVICES=0,1",
    "slurm": "SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_NTASKS=4 SLURM_NNODES=2 SLURM_GTIDS=2,3 "
    "SLURM_TASKS_PER_NODE=2(x2) SLURM_JOB_NODELIST=node[0-1] SLURMD_NODENAME=node1",
    "mpi": "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
    "OMPI_COMM_WORLD_NODE_RANK=1 OMPI_UNIVERSE_SIZE=4",
}


@rows("launcher", LAUNCHERS)
def test_a_launcher_sets_its_variables(launcher):
    variables = LAUNCHERS[launcher](AT)
    expected = dict(word.split("=") for word in OF_RANK_3[launcher].split())
    assert {name: variables.get(name) for name in expected} == expected


def test_slurm_and_mpi_set_none_of_torchs_variables():
    for launcher in ("slurm", "mpi"):
        assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"} & set(LAUNCHERS[launcher](AT))
    assert "LOCAL_WORLD_SIZE" not in LAUNCHERS["deepspeed"](AT)
    assert launcher_arguments("deepspeed", AT) == ("--local_rank=1",)
    assert launcher_arguments("torchrun", AT) == ()


def test_one_host():
    at = RankHost(1, 2)
    assert (at.number, at.local_rank, at.master) == (0, 1, "127.0.0.1")
    assert LAUNCHERS["slurm"](at)["SLURM_TASKS_PER_NODE"] == "2"
    assert LAUNCHERS["slurm"](at)["SLURM_NODELIST"] == "node0"


def test_which_ranks_are_where():
    assert hosts_text(4, 2) == "ranks 0-1 on node0, 2-3 on node1"
    assert hosts_text(2, 2) == "ranks 0 on node0, 1 on node1"


@rows(
    ("start", "text"),
    [
        (RankSeeds(hash_seeds=(28, 80)), "u28.80"),
        (RankSeeds(hash_seeds=(28, 80), nodes=2), "u28.80n2"),
        (RankSeeds(is_alike=True, nodes=12, launcher="slurm"), "an12slurm"),
        (RankSeeds(hash_seeds=(7,), launcher="mpi"), "u7n1mpi"),
    ],
)
def test_a_token_has_the_hosts(start, text):
    assert str(start) == text
    assert RankSeeds.parse(text) == start
