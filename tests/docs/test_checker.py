"""A wrong block of each kind is found, and its repaired twin passes."""

from textwrap import dedent

import pytest

from tests.docs.blocks import blocks_of
from tests.docs.commands import forget_modules
from tests.docs.page_run import PageRun

HANGS = """\
    Save this as `own.py`:

    <!-- file: own.py -->
    ```python
    import torch.distributed as dist


    def hangs(rank):
        if rank > 0:
            dist.barrier()
    ```
"""


@pytest.fixture
def problems(tmp_path, monkeypatch):
    """What is wrong with a page of this text."""
    monkeypatch.chdir(tmp_path)

    def of(text):
        page = tmp_path / "page.md"
        page.write_text(dedent(text))
        running = PageRun(tmp_path)
        return [problem for block in blocks_of(page) for problem in running.problems(block)]

    yield of
    forget_modules(tmp_path)


def page(*blocks):
    return "\n".join(map(dedent, blocks))


WRONG = {
    "pycon": ("```pycon\n>>> 1 + 1\n3\n\n```", "Expected:\n    3\nGot:\n    2"),
    "pycon without an example": ("```pycon\n1 + 1\n```", "has no example"),
    "console": (
        page(HANGS, "```console\n$ ddpsim run own.py:hangs\n...\nas expected: pass\n```"),
        "not as expected: found fail, deadlock.missing_rank",
    ),
    "console without a command": ("```console\nas expected: pass\n```", "begins with no command"),
    "console of pytest": (
        '`test_own.py`:\n<!-- file: test_own.py -->\n```python\ndef test():\n    assert not "rewritten"\n```\n'
        "```console\n$ pytest -q test_own.py\n...\n1 passed in 0.01s\n```",
        "assert not 'rewritten'",
    ),
    "sh": (page(HANGS, "```sh\nddpsim run own.py:hangs\n```"), "exit status 1, expected 0"),
    "sh in a pipe": ("```sh\necho said | grep unsaid\n```", "exit status 1, expected 0"),
    "python": ("`own.py`:\n<!-- file: own.py -->\n```python\nimport tensorflow_\n```", "No module named 'tensorflow_'"),
    "python without a name": ("```python\nx = 1\n```", "has no name"),
    "python of the repository": (
        "`examples/hang.py`:\n<!-- file: examples/hang.py -->\n```python\nx = 1\n```",
        "is not the end of",
    ),
    "toml": ("```toml\n# own.toml\nnetworks = 1\n```", "networks"),
    "toml that a command saved": (
        "```sh\necho x = 1 > own.toml\n```\n```toml\n# own.toml\nx = 2\n```",
        "is not what the commands have saved",
    ),
    "json": ("`own.json`:\n<!-- file: own.json -->\n```json\n{'a': 1}\n```", "JSONDecodeError"),
    "sql elsewhere": ("```sql\nselect nothing\n```", "expected none outside docs/reports.md"),
    "a name that is only in a comment": ("this:\n<!-- file: own.py -->\n```python\nx = 1\n```", "a reader sees"),
    "a name before the block before": (
        "`own.py`:\n```text\nx\n```\n<!-- file: own.py -->\n```python\nx = 1\n```",
        "is own.py, expected its name in the text above",
    ),
    "pycon that is skipped": ("```pycon\n>>> 1  # doctest: +SKIP\n2\n\n```", "has +SKIP"),
    "virtual time": ("```console\n$ echo at virtual time 9.5 s\nat virtual time 0.1 s\n```", "--- shown"),
    "console that should not fail": ("```console\n$ echo a; exit 7\na\n```", "exit status 7, expected 0 or 1 or 2"),
    "console that should fail": ("```console\n$ echo a  # exit 2\na\n```", "exit status 0, expected 2"),
    "text of SQL": ("```text\nselect name from slice\n```", "has a command, 'select'"),
    "text": ("```text\n$ ddpsim run own.py:hangs\n```", "has a command, '$'"),
    "no language": ("```\nx\n```", "language is '', expected one of console, json, pycon"),
    "needs what nobody installs": (
        "<!-- needs: latex -->\n```sh\ntrue\n```",
        "needs 'latex', expected one of chromium, dot",
    ),
    "no reason": ("<!-- not run -->\n```sh\nfalse\n```", "expected a reason"),
}

RIGHT = {
    "pycon": "```pycon\n>>> two = 2\n\n```\nand in the next\n```pycon\n>>> 1 + two, [1, 2]\n(3, [1, ...])\n\n```",
    "console": page(HANGS, "```console\n$ ddpsim run own.py:hangs\n...\nnot as expected: found fail, ...\n```"),
    "console of pytest": "`test_own.py`:\n<!-- file: test_own.py -->\n```python\n"
    'def test():\n    assert "rewritten"\n```\n'
    "```console\n$ pytest -q test_own.py\n...\n1 passed in 9.99s\n```",
    "console of python": "`own.py`:\n<!-- file: own.py -->\n```python\nimport sys\n\nif __name__ == '__main__':\n"
    "    print(sys.argv[1:])\n    sys.exit(3)\n```\n```console\n$ python own.py a b  # exit 3\n['a', 'b']\n```\n"
    "```sh\npython own.py  # exit 3\n```",
    "console of several": "```console\n$ echo a\na\n$ echo \\\n    b\nb\n```",
    "sh": page(
        HANGS,
        "```sh\n# one, then the other\nddpsim run own.py:hangs  # exit 1\n```",
        "```sh\nddpsim run \\\n  own.py:hangs --world-size 1\n```",
    ),
    "a file of the repository": "`examples/hang.py`:\n<!-- file: examples/hang.py -->\n```python\n"
    "    time.sleep(600)  # stands for an evaluation that needs no other rank\n```\n"
    "```sh\nddpsim run examples/hang.py:train  # exit 1\n```",
    "a file shown again": "```python\n# own.py\nx = 1\n```\n```python\n# own.py\nx = 2\n```\n"
    "`own.py`:\n<!-- again: own.py -->\n```console\n$ cat own.py\n# own.py\nx = 1\n```",
    "toml that a command saved": "```sh\necho x = 1 > own.toml\n```\n```toml\n# own.toml\nx = 1\n```",
    "json": '`own.json`:\n<!-- file: own.json -->\n```json\n{"a": 1}\n```',
    "console that fails": "```console\n$ echo a; exit 7  # exit 7\na\n$ echo took, 0.5 s\ntook, 9.9 s\n```",
    "text": "```text\n  replay  ddpsim replay own.py:hangs s1:0:0\n```",
    "not run": "<!-- not run: an hour -->\n```sh\nfalse\n```",
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_found(kind, problems):
    text, told = WRONG[kind]
    (problem,) = problems(text)
    assert told in problem


def test_a_block_whose_command_is_missing_is_left_out_and_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text("<!-- needs: dot -->\n```sh\ndot -V\n```\n")
    running = PageRun(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [problem for block in blocks_of(tmp_path / "page.md") for problem in running.problems(block)] == []
    assert running.left_out == ["page.md:2: dot is missing (Debian's package graphviz)"]


@pytest.mark.parametrize("kind", RIGHT)
def test_what_is_right_passes(kind, problems):
    assert problems(RIGHT[kind]) == []
