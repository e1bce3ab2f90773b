"""Programs on several simulated hosts."""

import os
import re
from pathlib import Path

import pytest

from ddpsim import Code, UsageError, Verdict, simulate, simulate_program
from ddpsim.scenarios.cli.commands import main
from ddpsim.scenarios.cli.program_words import multiply_ranks_by_hosts
from tests.kit.rows import rows

ci = pytest.mark.tier("ci")  # it starts processes

TELLS = """
import os, platform, socket, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
names = {socket.gethostname(), socket.getfqdn(), platform.node(), os.uname().nodename}
found = [None] * dist.get_world_size()
dist.all_gather_object(found, (os.environ["LOCAL_RANK"], *names, socket.gethostbyname("node1"), os.getpid()))
late = [None] * dist.get_world_size()
dist.all_gather_object(late, time.time())
if dist.get_rank() == 0:
    print("AT", [each[:-1] for each in found], len({each[-1] for each in found}), min(late[2:]) < min(late[:2]) - 0.1)
    print("GIVEN", sys.argv[1:], os.environ["MASTER_ADDR"])
dist.destroy_process_group()
"""

SAVES = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
path = os.path.abspath("disk/model.pt") if "absolute" in sys.argv else "disk/model.pt"
if int(os.environ["LOCAL_RANK" if "repaired" in sys.argv else "RANK"]) == 0:
    torch.save({"weight": torch.ones(1)}, path)  # C++ opens the file
dist.barrier()
torch.load(path)
dist.destroy_process_group()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tells.py").write_text(TELLS)
    Path("saves.py").write_text(SAVES)
    Path("disk").mkdir()
    return tmp_path


@rows(
    ("words", "size"),
    [
        ("run --nnodes 2 --nproc-per-node 3", "6"),
        ("run --nnodes=2 --nproc_per_node=3 --world-size 6", "6"),
        ("run --nproc-per-node 3", "3"),
    ],
)
def test_the_ranks_of_all_hosts_are_counted(words, size):
    changed = multiply_ranks_by_hosts([*words.split(), "--", "train.py --nnodes 7"])
    assert changed[-4:] == ["--world-size", size, "--", "train.py --nnodes 7"]
    assert "--nproc-per-node" not in changed


@rows(
    ("words", "line"),
    [
        (
            "--nnodes 2 --nproc-per-node 2 --world-size 5",
            "--world-size is 5, but --nnodes and --nproc-per-node give 4 ",
        ),
        ("--nnodes 1:2", "--nnodes is '1:2', expected a number, as nodes neither come nor leave: correct it"),
        ("--nproc-per-node gpu", "--nproc-per-node is 'gpu', expected a number: correct it"),
    ],
)
def test_numbers_that_do_not_fit_are_one_line(words, line):
    with pytest.raises(UsageError, match=re.escape(line)):
        multiply_ranks_by_hosts(["run", *words.split()])


def test_what_is_no_program_has_no_hosts():
    with pytest.raises(UsageError, match=r"^nnodes is 2, which only programs have"):
        simulate(print, 4, nnodes=2)


@ci
def test_ranks_are_on_hosts_with_names_and_clocks(folder, capsys):
    assert main(["run", "--nnodes", "2", "--nproc-per-node", "2", "--launcher", "deepspeed", "tells.py", "-x"]) == 0
    out = capsys.readouterr().out
    at = [(str(rank % 2), f"node{rank // 2}", "10.0.0.2") for rank in range(4)]
    assert f"AT {at} 4 True" in out
    assert "GIVEN ['--local_rank=0', '-x'] 10.0.0.1" in out
    assert "hosts   ranks 0-1 on node0, 2-3 on node1" in out
    token = re.search(r"s1:\S+n2deepspeed\S*", out)[0]
    assert main(["replay", token, "tells.py", "-x"]) == 0
    assert f"AT {at} 4 True" in capsys.readouterr().out
    assert main(["replay", token, "--nnodes", "4", "tells.py", "-x"]) == 2
    assert "nnodes is 4, but the schedule was recorded with 2: leave it out" in capsys.readouterr().err


@ci
@pytest.mark.parametrize("how", ["relative", "absolute"])
def test_a_private_disk_has_what_its_own_host_wrote(folder, how):
    options = {"nnodes": 2, "private_disk": ["disk"]}
    result = simulate_program(["saves.py", how], 4, **options)
    assert result.findings[0].code is Code.RANK_ERROR
    assert result.findings[0].ranks == (2, 3)
    assert "hosts   ranks 0-1 on node0, 2-3 on node1" in str(result.findings[0])
    os.remove("disk/model.pt")
    assert simulate_program(["saves.py", how, "repaired"], 4, **options).verdict is Verdict.PASS
    assert simulate_program(["saves.py", how], 4, nnodes=2).verdict is Verdict.PASS


@ci
def test_a_launcher_of_its_own_has_one_host(folder):
    Path("spawns.py").write_text(
        "import torch.multiprocessing as mp\ndef work(rank):\n    pass\n"
        "if __name__ == '__main__':\n    mp.spawn(work, nprocs=2)\n"
    )
    with pytest.raises(UsageError, match="starts its ranks itself, which is simulated on one host"):
        simulate_program(["spawns.py"], 2, nnodes=2)
