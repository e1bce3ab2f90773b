"""What ranks print: captured for each rank apart, or let through."""

from tests.pytest_plugin.reading import marked

PRINTS = """
import logging, sys, threading

@pytest.mark.ranks(2{options})
def test_prints(rank):
    print("out of", rank)
    dist.barrier()
    print("err of", rank, file=sys.stderr)
    thread = threading.Thread(target=lambda: print("thread of", rank))
    thread.start()
    thread.join()
    sys.stdout.buffer.write(b"bytes\\n")
    dist.barrier()
    assert PASSES
"""


def source(*, passes, options=""):
    return PRINTS.replace("PASSES", str(passes)).replace("{options}", options)


def sections(result):
    """The captured sections, by heading."""
    found, lines = {}, None
    for line in result.outlines:
        if line.startswith("---") and "Captured" in line:
            lines = found.setdefault(line.strip("- "), [])
        elif line.startswith(("===", "___")):
            lines = None
        elif lines is not None:
            lines.append(line)
    return found


def test_each_rank_has_sections_of_its_own(run):
    assert sections(run(source(passes=False, options=", policy='random', seed=4"))) == {
        f"Captured {stream} rank {rank} call": lines
        for rank in (0, 1)
        for stream, lines in (
            ("stdout", [f"out of {rank}", f"thread of {rank}", "bytes"]),
            ("stderr", [f"err of {rank}"]),
        )
    }


def test_a_passing_test_shows_them_on_request(run):
    assert sections(run(source(passes=True))) == {}
    assert len(sections(run(source(passes=True), "-rP"))) == 4
    assert list(sections(run(source(passes=False), "--show-capture=stderr"))) == [
        f"Captured stderr rank {rank} call" for rank in (0, 1)
    ]


def test_with_s_it_goes_straight_through(run):
    result = run(source(passes=True), "-s")

    result.assert_outcomes(passed=1)
    assert sections(result) == {}
    result.stdout.fnmatch_lines(["*out of 0", "out of 1", "thread of 0"])


def test_capsys_reads_what_the_ranks_print(run):
    run("""
@pytest.mark.ranks(2)
def test_capsys(rank, capsys):
    print("from", rank)
    assert capsys.readouterr().out == f"from {rank}\\n"

@pytest.mark.ranks(2)
def test_capfd(rank, capfd):
    import os
    os.write(1, b"below %d\\n" % rank)
    assert capfd.readouterr().out == f"below {rank}\\n"
""").assert_outcomes(passed=2)


def test_what_is_written_below_python_stays_with_the_test(run):
    result = run("""
import os, subprocess, sys

@pytest.mark.ranks(1)
def test_below(rank):
    os.write(1, b"native\\n")
    subprocess.run([sys.executable, "-c", "print('child')"], stdout=sys.stdout, check=True)
    print("own")
    assert False
""")

    assert sections(result) == {
        "Captured stdout rank 0 call": ["own"],
        "Captured stdout call": ["native", "child"],
    }


def test_logging_is_captured_with_the_test(run):
    result = run("import logging\n" + marked('logging.warning("from %d", rank)\nassert False'))
    assert [line.split()[-1] for line in sections(result)["Captured log call"]] == ["0", "1"]
