"""Programs that nobody wrote for us: files and modules, run by `ddpsim run` as torchrun runs them."""

import os
import textwrap

import pytest

from ddpsim import Code, UsageError, Verdict, simulate_program
from ddpsim.scenarios.cli.commands import main
from ddpsim.scenarios.cli.explore import explore
from ddpsim.scenarios.cli.program_words import join_program_into_one_word, takes_value_by_option, trailing_options
from ddpsim.scenarios.cli.run import run
from tests.tiers import sweep

pytestmark = pytest.mark.tier("ci")  # it starts processes
NIGHTLY = pytest.mark.tier("nightly")

SCRIPT = """
import argparse, os, sys
import torch, torch.distributed as dist

RANK = int(os.environ["RANK"])
assert __name__ == "__main__" and sys.modules["__main__"].RANK == RANK
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
arguments = parser.parse_args()
assert not dist.is_initialized()
dist.init_process_group("gloo")
total = torch.tensor([RANK + 1.0])
dist.all_reduce(total)
print(f"rank {RANK} of {dist.get_world_size()} epochs {arguments.epochs} total {total.item()}")
dist.destroy_process_group()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "__init__.py").write_text("")
    (tmp_path / "project" / "helper.py").write_text("def twice(x):\n    return 2 * x\n")
    (tmp_path / "project" / "train.py").write_text(
        "import sys, torch.distributed as dist\nfrom project.helper import twice\n"
        "dist.init_process_group('gloo')\nprint(twice(21), sys.argv[1:])\n"
    )
    return tmp_path


def write(folder, source):
    (folder / "own.py").write_text(textwrap.dedent(source))
    return ["own.py"]


TRAINING = """
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    dist.destroy_process_group()
"""


def test_a_training_that_passes_was_not_held_against_one_rank(folder, capfd):
    own, note = (
        write(folder, TRAINING),
        "  note    not checked: whether the ranks train as one rank would (scale of losses",
    )
    for words, is_said in ((own, True), (["--check", "reference", *own], False), (["train.py"], False)):
        assert main(["run", "--world-size", "2", *words]) == 0
        assert (note in capfd.readouterr().out) is is_said, words


def test_gradients_that_no_optimizer_uses_were_not_held_against_those_of_one_rank(folder, capfd):
    what = "whether the ranks' gradients are those of one rank (scale of losses and gradients, samples)"
    note = f"  note    not checked: {what}: no optimizer stepped, so ddpsim compare does not look at that\n"
    sources = TRAINING, TRAINING.replace("    optimizer.step()\n", ""), TRAINING.replace(".backward()", "")
    for source, is_said in zip(sources, (False, True, False), strict=True):
        assert main(["run", "--world-size", "2", *write(folder, source)]) == 0
        assert (note in capfd.readouterr().out) is is_said, source


def test_a_script_runs_as_under_torchrun(folder, capfd):
    before = dict(os.environ)
    assert main(["run", "--world-size", "2", "train.py", "--epochs", "3"]) == 0
    out = capfd.readouterr().out
    assert sorted(out.splitlines()[:2]) == [f"rank {rank} of 2 epochs 3 total 3.0" for rank in range(2)]
    assert "train.py --epochs 3  world size 2  policy round_robin" in out
    assert "replay  ddpsim replay s1:0:" in out
    assert out.splitlines()[-1] == "as expected: pass"
    assert dict(os.environ) == before


def test_what_is_printed_to_paste_repeats_the_run(folder, capfd):
    assert main(["run", "--nproc-per-node", "2", "--policy", "random", "train.py", "--epochs", "1"]) == 0
    (line,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("  replay  ")]
    words = line.split()[1:]
    assert words[:2] == ["ddpsim", "replay"]
    assert words[3:] == ["--world-size", "2", "train.py", "--epochs", "1"]
    assert main(words[1:]) == 0


def test_a_module_runs_with_its_own_arguments(folder, capfd):
    assert main(["run", "--world-size", "2", "-m", "project.train", "--world-size", "7"]) == 0
    assert capfd.readouterr().out.splitlines()[:2] == ["42 ['--world-size', '7']"] * 2


@pytest.mark.parametrize(
    ("end", "code"),
    [("sys.exit(0)", None), ("sys.exit()", None), ("sys.exit(2)", Code.RANK_ERROR), ("1/0", Code.RANK_ERROR)],
)
def test_how_a_script_ends(folder, end, code):
    result = simulate_program(write(folder, f"import sys\n{end}\n"), 2)
    assert result.returns == ((0, 0) if code is None else (None, None))
    assert [finding.code for finding in result.findings] == ([] if code is None else [code])


@pytest.mark.parametrize(
    ("middle", "codes", "ranks"),
    [
        ("dist.all_reduce(torch.ones(3))", [], []),
        ("work = dist.all_reduce(torch.ones(3), async_op=True)", [Code.HAZARD_UNWAITED_WORK], [(0, 1)]),
        ("if dist.get_rank() == 0: dist.barrier()", [Code.DEADLOCK_MISSING_RANK], [(1,)]),
    ],
    ids=["clean", "never waited for", "missing"],
)
def test_a_script_that_leaves_by_os_exit_is_told_what_another_is(folder, middle, codes, ranks):
    source = f"""
        import os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        {middle}
        os._exit(0)
    """
    result = simulate_program(write(folder, source), 2)
    assert [finding.code for finding in result.findings] == codes
    assert [finding.ranks for finding in result.findings] == ranks
    assert not result.errors


def test_replicas_are_compared_where_a_script_leaves_by_os_exit(folder, capfd):
    source = """
        import os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 3)).sum().backward()
        if dist.get_rank() != 1:
            optimizer.step()
        os._exit(0)
    """
    assert main(["run", "--world-size", "3", *write(folder, source)]) == 1
    assert "rank 1 made no optimizer step after step 1 of DDP #0" in capfd.readouterr().out


def test_a_script_that_leaves_by_os_exit_with_another_status_has_failed(folder):
    result = simulate_program(write(folder, "import os\nos._exit(4)\n"), 2)
    (finding,) = result.findings
    assert (finding.code, finding.summary) == (Code.RANK_ERROR, "ranks 0, 1 ended by os._exit(4) at own.py:2")
    assert "ended its process itself, by os._exit" in finding.body


def test_what_is_registered_for_the_end_runs(folder, capfd):
    source = """
        import atexit, torch.distributed as dist
        dist.init_process_group("gloo")
        atexit.register(lambda: (dist.barrier(), print("barrier at exit")))
    """
    assert simulate_program(write(folder, source), 2).verdict is Verdict.PASS
    assert capfd.readouterr().out == "barrier at exit\n" * 2


@pytest.mark.parametrize("fails", [True, False])
def test_an_exception_leads_what_an_exit_handler_meets_after_it(folder, fails):
    source = f"""
        import atexit, os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        atexit.register(dist.barrier)
        for step in range(3):
            if {fails} and step == 1 and os.environ["RANK"] == "1":
                raise ValueError("broken sample")
            dist.all_reduce(torch.ones(2))
    """
    findings = simulate_program(write(folder, source), 2).findings
    assert [(each.code, each.ranks) for each in findings] == (
        [(Code.RANK_ERROR, (1,)), (Code.MISMATCH_OPERATION, (1,))] if fails else []
    )
    if fails:
        assert findings[0].summary == "rank 1 raised ValueError: broken sample at own.py:7"
        assert "rank 1 raised ValueError, and code that ran after the exception" in findings[1].text


def test_a_script_finds_its_file_from_another_folder(folder, capfd):
    source = """
        import os, sys, torch.distributed as dist
        os.mkdir(os.environ["RANK"])
        os.chdir(os.environ["RANK"])
        print(open(__file__).read().count("mkdir"), sys.argv[0])
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            dist.barrier()
    """
    (finding,) = simulate_program(write(folder, source), 2).findings
    assert capfd.readouterr().out == "2 own.py\n" * 2
    assert "own.py:8" in finding.text
    assert str(folder) not in finding.text


def test_ranks_start_unlike_and_each_time_the_same(folder, capfd):
    source = """
        import random, torch, os
        print(os.environ["RANK"], torch.rand(1).item(), random.random())
    """
    simulate_program(write(folder, source), 3)
    first = capfd.readouterr().out
    simulate_program(["own.py"], 3)
    assert capfd.readouterr().out == first
    assert len({line.split(" ", 1)[1] for line in first.splitlines()}) == 3


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nothere.py"], "there is no file 'nothere.py', expected a program: correct the path"),
        (
            ["bad.py"],
            "'bad.py' does not compile ('(' was never closed (bad.py, line 1)), expected valid Python: "
            "correct it, `python bad.py` shows the line",
        ),
        (
            ["-m", "no.such"],
            "there is no module 'no.such', expected one that `python -m no.such` finds: correct the name",
        ),
        (
            ["-m", "project.no.such"],
            "there is no module 'project.no.such', expected one that `python -m project.no.such` finds: "
            "correct the name",
        ),
        (
            ["-m", "project"],
            "module 'project' is a package without __main__.py, expected a module that `python -m project` runs: "
            "name a module in the package",
        ),
        (
            ["-m", "project.bad"],
            "'project/bad.py' does not compile (unmatched ')' (bad.py, line 1)), expected valid Python: "
            "correct it, `python project/bad.py` shows the line",
        ),
        (
            ["bytes.py"],
            "'bytes.py' is no Python (invalid or missing encoding declaration for 'bytes.py'), "
            "expected a program in Python: name one",
        ),
        (["-m"], "-m is the last word, expected a module after it: add the module's name"),
        (["folder.py"], "'folder.py' cannot be read (Is a directory), expected a program: correct the path"),
    ],
)
def test_what_is_no_program(folder, capfd, words, line):
    (folder / "bad.py").write_text("x = (\n")
    (folder / "folder.py").mkdir()
    (folder / "bytes.py").write_bytes(b"\x7fELF\x80\x81\n")
    (folder / "project" / "bad.py").write_text("x = )\n")
    assert main(["run", *words]) == 2
    assert capfd.readouterr() == ("", f"ddpsim: {line}\n")
    with pytest.raises(UsageError) as error:
        simulate_program(words, 2)
    assert str(error.value) == line


def test_what_simulate_program_refuses(folder):
    with pytest.raises(UsageError, match=r"command is 'train.py', expected a list of words: write "):
        simulate_program("train.py", 2)
    with pytest.raises(UsageError, match=r"isolation is 'thread', but train.py runs as __main__"):
        simulate_program(["train.py"], 2, isolation="thread")


def test_what_a_package_does_is_left_to_the_ranks(folder, capfd):
    (folder / "project" / "__init__.py").write_text('import os\nprint("rank", os.environ["RANK"])\n')
    assert main(["run", "--world-size", "2", "-m", "project.train"]) == 0
    assert sorted(capfd.readouterr().out.splitlines()[:4]) == ["42 []", "42 []", "rank 0", "rank 1"]


MEETS = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
LEAVES_NONE = "dist.destroy_process_group()\n"
APART = (
    "ddpsim: own.py made no process group and used no store: all 2 ranks ended without any communication; expected "
    "init_process_group on each: call it{}, or run one rank (--world-size 1)\n"
)
FOR_GPUS = ", give --gpus N if it does so only with GPUs"


LEFT = "  note    own.py made no process group and used no store: ranks 0, 1 left by sys.exit(0)"
STORE = "import os, torch.distributed as d\nd.TCPStore('', 29500, 2, os.environ['RANK'] == '0').set('a', '1')"


@pytest.mark.parametrize(
    ("source", "words", "status", "error"),
    [
        ("x = 1", [], 2, APART.format("")),
        ("x = 'cuda'", [], 2, APART.format(FOR_GPUS)),
        ("import sys\nsys.exit(0)", [], 0, ""),
        (STORE, [], 0, ""),
        pytest.param("x = 'cuda'", ["--gpus", "1"], 2, APART.format(""), marks=NIGHTLY),
        pytest.param("x = 'torch.accelerator'", [], 2, APART.format(FOR_GPUS), marks=NIGHTLY),
        pytest.param("x = 1", ["--world-size", "1"], 0, "", marks=NIGHTLY),
    ],
)
def test_a_program_whose_ranks_do_not_meet(folder, capfd, source, words, status, error):
    write(folder, source)
    assert main(["run", "--world-size", "2", *words, "own.py"]) == status
    out, err = capfd.readouterr()
    assert err == error
    assert (LEFT in out.splitlines()) == ("sys.exit(0)" in source)


def test_a_program_that_left_for_want_of_gpus(folder, capfd):
    write(
        folder, "import sys, torch\nif torch.accelerator.device_count() < 2:\n    sys.exit(0)\n" + MEETS + LEAVES_NONE
    )
    assert main(["run", "--world-size", "2", "own.py"]) == 0
    assert LEFT + FOR_GPUS in capfd.readouterr().out.splitlines()
    assert main(["run", "--world-size", "2", "--gpus", "2", "own.py"]) == 0
    assert "note" not in capfd.readouterr().out


def test_a_result_says_that_its_ranks_did_not_meet(folder):
    write(folder, "x = 1")
    result = simulate_program(["own.py"], 2)
    told = "own.py made no process group and used no store: all 2 ranks ended without any communication"
    assert (result.verdict, result.note) == (Verdict.PASS, told)
    assert str(result).splitlines()[1] == f"  note    {told}"
    assert simulate_program(["own.py"], 1).note == ""
    write(folder, STORE)
    assert simulate_program(["own.py"], 2).note == ""


def test_a_group_that_ranks_leave_behind_is_noted_once(folder):
    def notes(source, world_size=2):
        write(folder, source)
        return simulate_program(["own.py"], world_size).notes

    left = "ended without destroy_process_group: real processes may abort while they exit; call it at the end"
    assert notes(MEETS) == (f"ranks 0, 1 {left}",)
    assert notes(f"{MEETS}if dist.get_rank():\n    {LEAVES_NONE}") == (f"rank 0 {left}",)
    where = f"init_method='file://{folder}/{{}}', world_size=2, rank=int(os.environ['RANK'])"
    again = f"import os\ndist.init_process_group('gloo', {where})\n"
    assert notes(MEETS + LEAVES_NONE + again.format(1)) == (f"ranks 0, 1 {left}",)
    assert notes(MEETS + LEAVES_NONE + again.format(2) + LEAVES_NONE) == ()
    assert (
        notes(MEETS + LEAVES_NONE) == notes(f"import atexit\n{MEETS}atexit.register(dist.destroy_process_group)") == ()
    )
    assert notes(MEETS, world_size=1) == notes(f"{MEETS}import os\nos._exit(0)") == ()


def test_what_an_exit_handler_raises_is_noted(folder):
    def notes(state):
        write(folder, f"import atexit\nstate = {state}\n{MEETS}{LEAVES_NONE}atexit.register(lambda: state['model'])\n")
        return simulate_program(["own.py"], 2).notes

    assert notes({"model": 1}) == ()
    assert notes({}) == ("at exit: ranks 0, 1 raised KeyError: 'model' (own.py:6)",)


def test_threads_that_are_in_calls_of_one_group_at_a_time_are_noted(folder):
    def notes(jobs, group="None"):
        pool = (
            f"from concurrent.futures import ThreadPoolExecutor\nother = {group}\nwith ThreadPoolExecutor(2) as pool:\n"
        )
        write(folder, f"import torch\n{MEETS}{pool}{textwrap.indent(jobs, ' ')}\n{LEAVES_NONE}")
        return simulate_program(["own.py"], 2).notes

    both = "pool.submit(dist.barrier)\npool.submit(dist.barrier, other)"
    (note,) = notes(both)
    names = " and ".join(f'thread "ThreadPoolExecutor-0_{number}" (own.py:{7 + number})' for number in range(2))
    assert note.startswith(f'on rank 1, {names} were in collectives of group "default" at the same time: ')
    assert notes(both, "dist.new_group()") == notes(both.replace("\n", ".result()\n")) == ()


def test_messages_of_several_ranks_that_are_received_from_any_source_are_noted(folder):
    def notes(ranks, source=""):
        message = f"torch.zeros(1){source}"
        lines = f"[dist.recv({message}) for rank in {ranks}] if dist.get_rank() == 0 else dist.send(torch.zeros(1), 0)"
        write(folder, f"import torch\n{MEETS}{lines}\n{LEAVES_NONE}")
        return simulate_program(["own.py"], len(ranks) + 1).notes

    (note,) = notes([1, 2])
    order = "they may come in another order, and only explore tries that"
    assert note == f"rank 0 received messages of ranks 1, 2 from any source (own.py:4): {order}"
    assert notes([1]) == notes([1, 2], ", src=rank") == ()


def test_a_receive_from_any_source_that_may_take_the_message_of_the_next_is_noted(folder):
    def notes(receives):
        value = "dist.send(value, 0)"
        lines = f"import torch\n{MEETS}value = torch.zeros(1)\nif dist.get_rank():\n {value}\nelse:\n {receives}\n"
        write(folder, f"{lines}{LEAVES_NONE}")
        result = simulate_program(["own.py"], 3)
        return result.notes if result.verdict is Verdict.PASS else result.findings[0].code

    # The message of rank 2 comes first here.
    (note,) = notes("dist.recv(value)\n dist.recv(value, 1)")
    where = "the receive from any source at own.py:8 may take the message of rank 1 for which own.py:9 waits"
    assert note == f"on rank 0, {where}, and only explore tries that"
    assert notes("dist.recv(value)\n dist.recv(value, 2)") is Code.DEADLOCK_MISSING_RANK
    assert notes("dist.recv(value, 1)\n dist.recv(value)") == ()


def test_a_look_for_a_key_that_is_there_by_chance_is_noted(folder):
    def notes(look, then=""):
        setting = "if not dist.get_rank():\n store.set('ready', '1')"
        store = "store = dist.distributed_c10d._get_default_store()\n"
        write(folder, f"{MEETS}{store}{setting}\n{then}{look}\ndist.barrier()\n{LEAVES_NONE}")
        return simulate_program(["own.py"], 2).notes

    text = "rank 1 looked for a key at own.py:6 that rank 0 had set, with no collective between: it may find none"
    assert notes("store.check(['ready'])") == (f"{text}, and only explore tries that",)
    loops = "while not store.check(['ready']): pass", "for _ in range(9):\n if store.check(['ready']): break"
    assert {notes(loop) for loop in loops} == {()}
    for order in ("dist.barrier()\n", "store.wait(['ready'])\n", "while not store.check(['ready']): pass\n"):
        assert notes("store.check(['ready'])", order) == ()


def test_files_that_ranks_share_without_a_barrier_are_noted(folder):
    (folder / "old.txt").touch()
    os.utime(folder / "old.txt", (1, 1))

    def notes(lines):
        imports = "import logging, shutil, tempfile, torch\n"
        write(folder, f"{imports}{MEETS}rank = dist.get_rank()\ndist.barrier()\n{lines}\n{LEAVES_NONE}")
        return simulate_program(["own.py"], 2).notes

    def told(name):
        how = "with no collective between: the last one decides what is left"
        return (f"ranks 0, 1 wrote or removed {name} {how}",)

    assert notes("torch.save(rank, 'best.pt')") == told("best.pt")
    assert notes("open('log', 'w').close()\nshutil.rmtree('out', ignore_errors=True)") == told("log, out")
    assert notes("torch.save(rank, f'{rank}.pt')\nopen('log', 'a').close()\nopen('/dev/null', 'w').close()") == ()
    assert notes("if rank == 0: torch.save(1, 'a.pt')\ndist.barrier()\nif rank == 1: torch.save(1, 'a.pt')") == ()
    for lock in ("open('lock', 'x')", "fcntl.flock(open('log'), fcntl.LOCK_EX)"):
        assert (
            notes(f"import fcntl, contextlib\nwith contextlib.suppress(OSError): {lock}\nopen('n', 'w').close()") == ()
        )
    save = "import tempfile; tempfile.mkdtemp()\nif rank == 0: torch.save(1, 'b.pt')"
    load = "if rank == 1: assert torch.load('b.pt') == 1"
    how = "with no collective between: without a barrier there, the file may be missing"
    assert notes(f"{save}\n{load}") == (f"rank 1 read b.pt, which rank 0 had written, {how}",)
    for twin in (
        f"{save}\ndist.barrier()\n{load}",
        f"{save}\nimport os\nwhile not os.path.exists('b.pt'): pass\n{load}",
        # the file that it looks for is a mark, which rank 0 leaves after the other
        f"import os, time\nif rank == 0: time.sleep(1)\n{save}; open('mark', 'w').close()\n"
        f"while rank and not os.path.exists('mark'): time.sleep(0.1)\n{load}",
    ):
        assert notes(twin) == ()
    make = "import os, pathlib\nd = pathlib.Path('made')\n"
    race = f"{make}if not os.path.isdir(d): os.mkdir(d)"
    looks = "where own.py:8 found none, and rank 1 looked there, too, with no collective between"
    for program in (race, race.replace("os.mkdir(d)", "os.makedirs(d)"), f"{make}if not d.exists(): d.mkdir()"):
        assert notes(f"{program}\ndist.barrier()\nif rank == 0: shutil.rmtree('made')") == (
            f"rank 0 made made {looks}: several may try to make it, and all but the first raise FileExistsError",
        )
    for twin in (
        race.replace("mkdir(d)", "makedirs(d, exist_ok=True)"),
        race.replace("os.mkdir(d)", "d.mkdir(exist_ok=True)"),
        race.replace("if not", "if rank == 0 and not"),
        race.replace("if not", "if not rank == 1 and not"),
        race.replace("os.mkdir(d)", "rank or os.mkdir(d)"),
        race.replace("os.mkdir(d)", "\n    if rank == 0: os.mkdir(d)"),
        f"{make}try:\n    if not d.exists(): os.mkdir(d)\nexcept FileExistsError: pass",
        f"{make}if not rank and not d.exists(): os.mkdir(d)\ndist.barrier()\nif not d.exists(): os.mkdir(d)",
        f"{make}if rank == 0: os.mkdir(d)\nwhile not os.path.isdir(d): pass",
        "import os; os.makedirs('made', exist_ok=True)\ntorch.save(1, f'made/{rank}.pt')",
    ):
        assert notes(f"{twin}\ndist.barrier()\nif rank == 0: shutil.rmtree('made')") == ()
    made = "import pathlib\nd = pathlib.Path('made')\nd.mkdir(exist_ok=True)\ndist.barrier()"
    removes = f"{made}\nif d.exists():\n    shutil.rmtree(d)"
    looks = "where own.py:10 found it, and rank 0 looked there, too, with no collective between"
    for program in (removes, removes.replace("d.exists()", "pathlib.os.path.isdir('made')")):
        assert notes(program) == (
            f"rank 1 removed made {looks}: several may try to remove it, and all but the first raise FileNotFoundError",
        )
    for twin in (
        removes.replace("(d)", "(d, ignore_errors=True)"),
        removes.replace("if d.", "if rank == 0 and d."),
        removes.replace("    shutil", "    if rank == 0: shutil"),
        f"{made}\nif rank == 0:\n    if d.exists(): shutil.rmtree(d)\ndist.barrier()\nassert not d.exists()",
        f"{made}\nd = pathlib.Path(f'made/{{rank}}')\nd.mkdir()\nif d.exists(): shutil.rmtree(d)",
        f"{made}\ntry:\n    if d.exists(): shutil.rmtree(d)\nexcept FileNotFoundError: pass",
    ):
        assert notes(f"{twin}\ndist.barrier()") == ()
    again = "torch.save(1, f'c{rank}.pt')\ndist.barrier()\ntorch.save(2, 'c1.pt')"
    assert notes(again) == told("c1.pt")
    messages = (
        "if rank == 0: dist.send(torch.ones(1), 1); open('m', 'w')\nelse: dist.recv(torch.ones(1))\ndist.barrier()"
    )
    assert notes(messages + "\nif rank: open('m').close()") == ()
    store = "store = dist.distributed_c10d._get_default_store()"
    assert notes(f"{store}\n{save}; store.set('saved', '1')\nstore.wait(['saved'])\n{load}") == ()
    assert notes("if rank == 1: open('old.txt').read()") == ()
    assert notes("tempfile.NamedTemporaryFile('w').write('1')\nlogging.basicConfig(filename='log.txt')") == ()


@pytest.mark.parametrize("command", sweep(["explore", "shrink", "fuzz"], lambda each: each == "explore"))
def test_ranks_that_do_not_meet_are_no_case_for(folder, capfd, command):
    write(folder, "x = 1")
    assert main([command, "--world-size", "2", "own.py"]) == 2
    assert capfd.readouterr() == ("", APART.format(""))


TAKES = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--seed')\np.add_argument('--data')\n"
TAKES += "p.parse_args()\n"


@pytest.mark.parametrize(
    ("source", "words", "status", "noted"),
    [
        (TAKES + MEETS, "run own.py --data x --gpus=2", 1, "--gpus=2"),
        (MEETS, "explore -m own --policy dfs", 0, "--policy dfs"),
        (MEETS + "import os; os._exit(0)", "run --world-size 2 own.py --gpus 2", 0, "--gpus 2"),
        (TAKES + MEETS, "run own.py --seed 3 --data x", 0, ""),
        (TAKES + MEETS, "run own.py --seed 3 --data x --rows 1", 1, ""),
        (MEETS, "run own.py --ranks 8", 0, ""),
        (MEETS, "run own.py", 0, ""),
    ],
)
def test_an_option_of_ours_after_a_program_that_may_not_be_its_own_is_noted(
    folder, capfd, source, words, status, noted
):
    """What test_cli_options.py has of it, on real programs."""
    write(folder, source)
    assert main(words.split()) == status
    command, program = words.split()[0], "-m own" if "-m" in words else "own.py"
    note = f"ddpsim: {noted} is written after {program}, so the program receives it; "
    note += f"if it is for ddpsim {command}, write it before {program}"
    assert [line for line in capfd.readouterr().err.splitlines() if "ddpsim:" in line] == [note] * bool(noted)


def test_trailing_options_are_those_of_the_command():
    of_run, of_explore = takes_value_by_option(run), takes_value_by_option(explore)
    assert [of_run[name] for name in ("--world-size", "--nproc_per_node", "--open")] == [True, True, False]
    assert ("--keep-going" in of_explore, "--keep-going" in of_run) == (True, False)
    words = ["--lr", "0.1", "--gpus", "2", "--open", "x", "--seed=3", "2"]
    assert trailing_options(words, of_run) == ["--gpus", "2", "--open", "--seed=3"]


@pytest.mark.parametrize("command", ["replay", "shrink"])
def test_a_token_behind_the_program_is_told(folder, capfd, command):
    write(folder, MEETS)
    assert main([command, "own.py", "s1:0:e2f90957"]) == 2
    assert capfd.readouterr().err == (
        "ddpsim: s1:0:e2f90957 is after own.py, so the program receives it: put the token before the program\n"
    )


def test_real_processes_are_torchruns(folder, capfd):
    write(folder, MEETS)
    assert main(["run", "--transport", "processes", "own.py"]) == 2
    assert capfd.readouterr().err == (
        "ddpsim: transport is 'processes', but own.py is a program, which torchrun runs on real processes: use "
        "`torchrun --nproc-per-node 4 ...`, or transport 'memory' or 'gloo'\n"
    )


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        (["run", "a.py", "--x", "1"], ["run", "--", "a.py --x 1"]),
        (["run", "--seed", "3", "a.py", "b c"], ["run", "--seed", "3", "--", "a.py 'b c'"]),
        (["replay", "s1:0:1", "--world-size", "2", "a.py"], ["replay", "--world-size", "2", "--", "a.py", "s1:0:1"]),
        (["fuzz", "--jobs", "2", "a.py", "--jobs", "3"], ["fuzz", "--jobs", "2", "--", "a.py --jobs 3"]),
        (["fuzz", "--corpus", "a.py", "b.py"], ["fuzz", "--corpus", "a.py", "--", "b.py"]),
        (["explore", "-m", "a.b", "-m"], ["explore", "--", "-m a.b -m"]),
        (["run", "a.py:f", "--seed", "3"], ["run", "a.py:f", "--seed", "3"]),
        ([], []),
    ],
)
def test_what_follows_a_program_is_its_own(words, taken):
    assert join_program_into_one_word(words, ["--seed", "--jobs", "--corpus"]) == taken
