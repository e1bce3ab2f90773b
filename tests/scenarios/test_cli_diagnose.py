"""`ddpsim diagnose`: records of real jobs on the console."""

import io
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile

import pytest

from ddpsim.reports.forms.json_form import read_document
from tests.records.dumps import as_json, call, job, pickled, written
from tests.tiers import sweep

DONE, HUNG = call(), call(line=21, state="started")
MISSING = job([[DONE, HUNG], [DONE, HUNG], [DONE], [DONE, HUNG]])
FINE = job([[DONE]] * 2)


def archives(folder, dumps, is_packed=True):
    """The same as a tar and as a zip: the whole of the tar is packed, or the members of the zip."""
    paths = (
        [folder / "dumps.tar.gz", folder / "dumps.zip"] if is_packed else [folder / "plain.tar", folder / "packed.zip"]
    )
    method = zipfile.ZIP_STORED if is_packed else zipfile.ZIP_DEFLATED
    with tarfile.open(paths[0], "w:gz" if is_packed else "w") as tar, zipfile.ZipFile(paths[1], "w", method) as zipped:
        for rank, each in dumps.items():
            data = pickled(each)
            member = tarfile.TarInfo(f"host{rank}/rank_{rank}" if is_packed else f"rank_{rank}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
            zipped.writestr(f"rank_{rank}", data)
    return paths


def test_what_a_job_left_is_told_as_a_run_would_be(ddpsim, tmp_path):
    written(tmp_path / "dumps", MISSING)
    status, out, err = ddpsim("diagnose", "dumps")
    assert (status, err) == (1, "")
    first, _, heading, *lines = out.splitlines()
    assert first == "dumps  world size 4  4 records of flight recorder 2.10  7 calls"
    assert heading == "DEADLOCK  deadlock.missing_rank"
    assert lines[2] == "  rank 2  made no call after all_reduce #0                      train.py:20"
    assert lines[-1] == "note  not in the records, so not compared: reduction, root, splits"


def test_the_paths_may_be_anything_that_holds_records(ddpsim, tmp_path):
    written(tmp_path / "dumps", MISSING)
    written(tmp_path / "as json", MISSING, "worker-{}.log", as_json)
    (tmp_path / "dumps" / "train.log").write_text("epoch 1")
    (tmp_path / "dumps" / "config.json").write_text('{"lr": 1}')
    paths = [["dumps"], ["as json"], ["dumps/rank_*"], [f"dumps/rank_{rank}" for rank in range(4)]]
    for each in (*paths, *([str(path)] for path in archives(tmp_path, MISSING))):
        status, out, _ = ddpsim("diagnose", *each)
        assert (status, "missing 2" in out, "incomplete" in out) == (1, True, False)


def test_records_without_a_finding_pass_and_what_met_is_counted(ddpsim, tmp_path):
    written(tmp_path / "dumps", FINE)
    status, out, _ = ddpsim("diagnose", "dumps")
    assert (status, "in everything that the records contain: 1 collective\n" in out) == (0, True)
    sent = [call("send", to=1), call("recv", to=1)]
    received = [call("recv", to=0), call("send", to=0)]
    written(tmp_path / "dumps", job([[DONE, *sent], [DONE, *received]]))
    assert "in everything that the records contain: 1 collective, 2 messages\n" in ddpsim("diagnose", "dumps")[1]
    written(tmp_path / "dumps", job([sent, received]))
    assert "in everything that the records contain: 2 messages\n" in ddpsim("diagnose", "dumps")[1]


def test_a_hang_is_not_passed_over_where_no_record_knows_an_end(ddpsim, tmp_path):
    sent = "C1|sig|send|in_count=2|out_count=0|dtype=f32|peer=1|async_op=f|comm=world\nC1|Q|work_id=1|+0.1\n"
    received = "C1|sig|recv|in_count=0|out_count=2|dtype=f32|peer=0|async_op=f|comm=world\nC1|Q|work_id=1|+0.1\n"
    for rank, text in enumerate((sent, received)):
        head = f"V|1|base_timestamp=1714234567.890\nnew_comm|comm=world|rank={rank}|world_size=2\n"
        (tmp_path / f"clog_rank_{rank}.log").write_text(head + text)
    status, out, _ = ddpsim("diagnose", str(tmp_path))
    assert (status, "UNKNOWN  unchecked\n  cause   the calls of ranks 0, 1 agree" in out) == (3, True), out


def test_a_report_is_written(ddpsim, tmp_path):
    written(tmp_path / "dumps", MISSING)
    assert ddpsim("diagnose", "dumps", "--report", "out")[0] == 1
    (run,) = read_document(tmp_path / "out" / "result.json").runs
    assert [finding.ranks for finding in run.findings] == [(2,)]
    assert [(slot.sequence, slot.state, slot.missing) for slot in run.slots] == [(0, "matched", ()), (1, "open", (2,))]
    assert (run.schedule, run.replay) == ("", "")
    assert "deadlock.missing_rank" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_of_a_version_that_is_not_known_what_is_like_the_known_one_counts(ddpsim, tmp_path):
    note = "note  flight recorder 3.1 is an unknown version, read like 2.10: new or changed fields are not compared"
    for dumps, status, text in ((FINE, 3, "UNKNOWN  unchecked"), (MISSING, 1, "DEADLOCK  deadlock.missing_rank")):
        written(tmp_path / "dumps", {rank: {**each, "version": "3.1"} for rank, each in dumps.items()})
        told = ddpsim("diagnose", "dumps")
        assert (told[0], text in told[1], note in told[1]) == (status, True, True), told


def test_a_damaged_file_is_left_out_and_told(ddpsim, tmp_path):
    folder = written(tmp_path / "dumps", MISSING)
    (folder / "rank_3").write_bytes((folder / "rank_3").read_bytes().replace(b"(", b"0", 1))
    status, out, _ = ddpsim("diagnose", "dumps")
    assert status == 1
    assert "note  left out dumps/rank_3: a pickle that is damaged" in out
    assert "note  no record of rank 3" in out


def test_a_pickle_that_is_cut_is_read_as_far_as_it_goes(ddpsim, tmp_path):
    folder = written(tmp_path / "dumps", job([[DONE] * 6 + [HUNG]] * 3))
    (folder / "rank_1").write_bytes((folder / "rank_1").read_bytes()[:-200])
    status, out, _ = ddpsim("diagnose", "dumps")
    assert (status, "UNKNOWN  unchecked" in out) == (3, True)
    assert "  rank 1  left a record that ends after all_reduce #" in out
    assert "note  the record of rank 1 is cut short; the part before that was read: rank 1 after all_reduce #" in out


@pytest.mark.tier("ci")
def test_neither_torch_nor_a_program_is_needed(ddpsim, tmp_path):
    written(tmp_path / "dumps", FINE)
    code = "import sys; from ddpsim.scenarios.cli.commands import main; main(['diagnose', 'dumps']); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False).returncode == 0


class Runs:
    def __reduce__(self):
        return os.mkdir, ("left",)


def one(value):
    return {"rank_0": pickled(value)}


BAD = {
    "no such path": (
        {},
        ["gone"],
        "gone does not exist, expected a file, a folder, an archive or a pattern: correct it",
    ),
    "an empty folder": ({}, ["."], "found no record in ., expected a dump of torch's flight recorder"),
    "no record": ({"a.log": b"x"}, ["."], "found no record in . among 1 files, expected"),
    "a file that is none": ({"a.log": b"x"}, ["a.log"], "a.log: a file that is no record, expected a dump"),
    "an empty file": ({"rank_0": b""}, ["rank_0"], "rank_0: an empty file"),
    "a pickle that wants to import": (
        {"rank_0": pickle.dumps(Runs(), 2)},
        ["rank_0"],
        "rank_0: a pickle that tries to import posix.mkdir, expected plain values; nothing was run",
    ),
    "the same in a folder": ({"rank_0": pickle.dumps(Runs(), 2)}, ["."], "tries to import posix.mkdir"),
    "no version": (one({**FINE[0], "version": 3}), ["."], "of version '3', expected 2.0 or a later one"),
    "another version, other fields": (
        one({"version": "3.1", "entries": [{"id": 1}]}),
        ["."],
        "a dump of the unknown version 3.1, which differs from 2.10",
    ),
    "one rank": (one(FINE[0]), ["."], "found the record of rank 0 only, expected those of two ranks or more"),
    "two files for one rank": (
        {**one(FINE[0]), "old/rank_0": pickled(FINE[0])},
        ["."],
        "found two records of rank 0, ./old/rank_0 and ./rank_0, expected one of each rank: leave out those of another",
    ),
    "two jobs": (
        {**one(FINE[0]), "rank_1": pickled(MISSING[1])},
        ["."],
        "found records of two jobs, one of 2 ranks (./rank_0) and one of 4 (./rank_1), expected those of one",
    ),
    "empty rings": (
        {f"rank_{rank}": pickled({**FINE[0], "entries": []}) for rank in range(2)},
        ["."],
        "found no call in the records (./rank_0, ./rank_1), expected some: switch the recorder on by",
    ),
    "a rank outside": (
        {**one(FINE[0]), "rank_7": pickled(FINE[1])},
        ["."],
        "found a record that names rank 7 in a job of 2 ranks, expected ranks below that",
    ),
    "another size": (
        {f"rank_{rank}": pickled(FINE[rank]) for rank in range(2)},
        [".", "--world-size", "3"],
        "found records of a job of 2 ranks (./rank_1), and --world-size says 3: leave it out, or leave out what",
    ),
}


@pytest.mark.parametrize(("files", "paths", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line(ddpsim, tmp_path, files, paths, message):
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    status, out, err = ddpsim("diagnose", *paths)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not (tmp_path / "left").exists()


def test_archives_cannot_leave_their_place(ddpsim, tmp_path):
    def tar(**fields):
        with tarfile.open(tmp_path / "bad.tar", "w") as archive:
            member = tarfile.TarInfo("rank_0")
            for name, value in fields.items():
                setattr(member, name, value)
            archive.addfile(member)
        return ddpsim("diagnose", "bad.tar")

    for fields, message in (
        ({"name": "../rank_0"}, "has a member '../rank_0', expected a path inside the archive"),
        ({"name": "/rank_0"}, "expected a path inside the archive"),
        ({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "has the link or device 'rank_0', expected plain files"),
        ({"type": tarfile.CHRTYPE}, "has the link or device"),
    ):
        status, out, err = tar(**fields)
        assert (status, out, message in err) == (2, "", True), err
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("a/../../rank_0", b"x")
    assert "expected a path inside the archive" in ddpsim("diagnose", "bad.zip")[2]


def test_a_bomb_is_refused_before_it_is_read(ddpsim, tmp_path, monkeypatch):
    from ddpsim.scenarios.records import record_files as files

    monkeypatch.setattr(files, "MOST_BYTES", 10_000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rank_0", bytes(20_000))
    message = "bomb.zip has a member 'rank_0' of 20000 bytes, expected at most 10000"
    assert message in ddpsim("diagnose", "bomb.zip")[2]
    (tmp_path / "rank_0").write_bytes(b"\x80" * 20_000)
    assert "has a file of more than 10000 bytes" in ddpsim("diagnose", "rank_0")[2]


def test_a_link_that_leaves_the_folder_is_passed_over(ddpsim, tmp_path):
    written(tmp_path / "elsewhere", FINE)
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "rank_0").symlink_to(tmp_path / "elsewhere" / "rank_0")
    assert "found no record in dumps" in ddpsim("diagnose", "dumps")[2]


@pytest.mark.parametrize("lengths", sweep([10, 60], lambda count: count == 10))
def test_of_an_archive_that_is_cut_the_members_that_are_whole_are_read(ddpsim, tmp_path, lengths):
    for path in (*archives(tmp_path, MISSING, is_packed=False), *archives(tmp_path, MISSING)):
        data, read = path.read_bytes(), set()
        for length in range(4, len(data), len(data) // lengths):
            path.write_bytes(data[:length])
            status, out, err = ddpsim("diagnose", path.name)
            if status == 2:  # not two are whole
                assert err.count("\n") == 1
                assert ("of rank 0 only" in err) == ("; left out the part after " in err)
                continue
            assert err == ""
            count = int(out.partition(" record")[0].split()[-1])
            read.add(count)
            whole = "host" * ("gz" in path.name) + f"{count - 1}/" * ("gz" in path.name) + f"rank_{count - 1}"
            note = f"note  left out the part after {whole} in {path.name}, which is incomplete ("
            told = sum(line.startswith(note) for line in out.splitlines())
            assert told == 1 or (told == 0 and count == 4), (path.name, length)  # of four only padding may be gone
        # What gzip has packed comes to light in blocks: a small one all at once.
        assert read >= ({2, 3} if "gz" not in path.name else set()), path.name


def test_in_an_archive_that_is_cut_what_is_refused_still_is(ddpsim, tmp_path):
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("rank_0", pickled(FINE[0]))
        archive.writestr("../rank_1", pickled(FINE[1]))
        archive.writestr("rank_2", b"x" * 5000)
    data = (tmp_path / "bad.zip").read_bytes()
    (tmp_path / "bad.zip").write_bytes(data[:-3000])
    assert "expected a path inside the archive" in ddpsim("diagnose", "bad.zip")[2]


def test_a_damaged_member_of_a_zip_ends_what_is_read_of_it(ddpsim, tmp_path):
    _, path = archives(tmp_path, MISSING, is_packed=False)
    data = bytearray(path.read_bytes())
    place = data.index(b"rank_2") + 40
    data[place] ^= 0xFF
    path.write_bytes(bytes(data))
    _, out, _ = ddpsim("diagnose", path.name)
    assert "2 records of" in out
    assert "note  left out the part after rank_1 in packed.zip, which is incomplete (" in out


def test_a_hang_becomes_a_test_that_fails_alike_and_shrinks(ddpsim, tmp_path):
    written(tmp_path / "dumps", MISSING)
    status, out, _ = ddpsim("diagnose", "dumps", "--write-test", "hang.toml")
    assert status == 1
    assert out.splitlines()[-3:] == [
        "test    hang.toml finds fail, deadlock.missing_rank, rank 2",
        "  ddpsim run hang.toml",
        "  ddpsim shrink hang.toml",
    ]
    status, out, _ = ddpsim("run", "hang.toml")
    assert (status, out.splitlines()[-1]) == (0, "as expected: fail, deadlock.missing_rank, rank 2")
    status, out, _ = ddpsim("shrink", "hang.toml")
    assert (status, out.splitlines()[0].partition("  ->  ")[2][:15]) == (0, "2 ranks, 1 call")
    assert 'cause = "ranks 0, 1, 3 wait for rank 2, which did not arrive"' in (tmp_path / "hang.toml").read_text(
        "utf-8"
    )


def test_a_test_needs_a_finding_and_a_new_file(ddpsim, tmp_path):
    written(tmp_path / "dumps", FINE)
    assert ddpsim("diagnose", "dumps", "--write-test", "own.toml")[2] == (
        "ddpsim: the records show no failure to reproduce in a test: leave --write-test out\n"
    )
    (tmp_path / "own.toml").write_text("mine")
    taken = ddpsim("diagnose", "dumps", "--write-test", "own.toml")[2]
    assert "own.toml exists, expected a new file, so that nothing is lost: name another with --write-test" in taken
    assert ddpsim("diagnose", "dumps", "--write-test", "own.txt")[2] == (
        "ddpsim: --write-test is 'own.txt', expected a name that ends in .py (pytest) or .toml (ddpsim): correct it\n"
    )


def test_the_test_for_pytest_is_written_and_says_how_to_run_it(ddpsim, tmp_path):
    written(tmp_path / "dumps", MISSING)
    status, out, _ = ddpsim("diagnose", "dumps", "--write-test", "test_hang-7.py")
    assert status == 1
    assert out.endswith("\ntest    test_hang-7.py finds fail, deadlock.missing_rank, rank 2\n  pytest test_hang-7.py\n")
    text = (tmp_path / "test_hang-7.py").read_text()
    assert text.startswith('"""ranks 0, 1, 3 wait for rank 2, which did not arrive.\n')
    assert "Written by `ddpsim diagnose dumps --write-test test_hang-7.py`." in text
    assert "def test_hang_7(rank):\n" in text
    taken = ddpsim("diagnose", "dumps", "--write-test", "test_hang-7.py")[2]
    assert taken.startswith("ddpsim: test_hang-7.py exists, expected a new file")


PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range({}):
    dist.all_reduce(torch.ones(11))
"""


@pytest.mark.tier("ci")
def test_the_program_itself_is_run_and_compared(ddpsim, tmp_path):
    written(tmp_path / "dumps", MISSING)
    (tmp_path / "train.py").write_text(PROGRAM.format("1 if dist.get_rank() == 2 else 2"))
    (tmp_path / "repaired.py").write_text(PROGRAM.format(2))
    status, out, _ = ddpsim("diagnose", "dumps", "--program", "train.py")
    assert (status, out.splitlines()[-3:-1]) == (
        1,
        [
            "program train.py finds deadlock.missing_rank, rank 2",
            "  makes the same calls as the records on ranks 0-3: 7",
        ],
    )
    assert ddpsim("diagnose", "dumps", "--program", "repaired.py")[1].splitlines()[-5:-1] == [
        "program repaired.py finds nothing on virtual ranks",
        "  differs from the records first on rank 2, after 1 equal call",
        "  record   no more call",
        '  program  all_reduce #1  float32[11]  group "default"  repaired.py:5',
    ]
    assert ddpsim("diagnose", "dumps", "--program", "")[2].startswith("ddpsim: --program is empty, expected a program")
