"""Options that stand behind a program, which nobody there has a use for: told by what the ranks do with them."""

import argparse
import pickle
import sys

import pytest

from ddpsim.scenarios.cli.explore import explore
from ddpsim.scenarios.cli.program_options import misplaced_words, options_of
from ddpsim.scenarios.cli.run import run
from ddpsim.simulator.launching.misplaced import Misplaced

UNSEEN = "does not look at its arguments"
REFUSED = "does not know it"


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda words: None, UNSEEN),
        (lambda words: words[0], UNSEEN),
        (lambda words: words[1:], ""),
        (lambda words: words[1], ""),
        (len, ""),
        (list, ""),
        (lambda words: "--gpus" in words, ""),
        (lambda words: ["x", *words], ""),
        (lambda words: ["x"] + words, ""),  # noqa: RUF005
        (lambda words: words + ["x"], ""),  # noqa: RUF005
        (lambda words: words.copy(), ""),
        (lambda words: words.pop(), ""),
        (lambda words: words.index("2"), ""),
        (lambda words: words.remove("2"), ""),
        (lambda words: words == ["a.py", "--gpus", "2"], ""),
        (lambda words: words != ["a.py"], ""),
        (repr, ""),
        (lambda words: f"{words}", ""),
        (lambda words: list(reversed(words)), ""),
        (lambda words: words.count("2"), ""),
        (lambda words: [*words[:1]], ""),
        (lambda words: words.append("3"), ""),
        (lambda words: words.__setitem__(0, "own.py"), UNSEEN),  # as `-m` does
    ],
)
def test_who_looks_at_arguments_may_use_them(use, why):
    misplaced = Misplaced(["--gpus", "2"])
    words = misplaced.arguments(["a.py", "--gpus", "2"])
    use(words)
    misplaced.look_at_end()
    assert misplaced.why == why


def test_who_failed_before_may_have_looked_at_them_later():
    misplaced = Misplaced(["--gpus", "2"])
    misplaced.arguments(["a.py", "--gpus", "2"])
    misplaced.look_at_end(ModuleNotFoundError("No module named 'nothere'"))
    assert misplaced.why == ""
    misplaced.look_at_end(ValueError("unknown option --gpus"))
    assert misplaced.why == REFUSED


def test_one_rank_that_came_to_its_end_does_not_speak_for_one_that_was_stopped():
    misplaced = Misplaced(["--gpus", "2"])
    misplaced.arguments(["a.py", "--gpus", "2"])
    misplaced.look_at_end()
    misplaced.look_at_end(KeyboardInterrupt())
    assert (misplaced.why, misplaced.is_open) == ("", True)


def test_who_left_without_a_look_did_not_want_them():
    misplaced = Misplaced(["--gpus", "2"])
    misplaced.arguments(["a.py", "--gpus", "2"])
    misplaced.look_at_end(SystemExit(3))
    assert misplaced.why == UNSEEN


def test_a_process_of_a_ranks_own_gets_a_plain_list():
    misplaced = Misplaced(["--gpus"])
    words = misplaced.arguments(["a.py", "--gpus", "2"])
    misplaced.look_at_end()
    assert misplaced.is_unseen
    again = pickle.loads(pickle.dumps(words))
    assert (type(again), again) == (list, ["a.py", "--gpus", "2"])
    assert not misplaced.is_unseen  # it may look there


@pytest.mark.parametrize(
    ("use", "left"),
    [(lambda: sys.argv[1:], ["a.py", "--gpus", "2"]), (lambda: sys.argv.remove("2"), ["a.py", "--gpus"])],
)
def test_who_has_looked_has_a_plain_list_to_put_into_a_checkpoint(use, left, monkeypatch):
    monkeypatch.setattr(sys, "argv", Misplaced(["--gpus"]).arguments(["a.py", "--gpus", "2"]))
    use()
    assert sys.argv == left
    assert type(sys.argv) is list


def raised(run):
    try:
        run()
    except (Exception, SystemExit) as error:
        return error
    raise AssertionError("it raised nothing")


def parser():
    own = argparse.ArgumentParser()
    own.add_argument("--seed", type=int)
    own.add_argument("--data", required=True)
    return own


def by_click():
    import click

    click.command()(lambda: None).main(["--gpus", "2"])


@pytest.mark.parametrize(
    ("parse", "words", "is_refused"),
    [
        (lambda: parser().parse_args(["--data", "x", "--gpus", "2"]), ["--gpus", "2"], True),
        (lambda: parser().parse_args(["--data", "x", "--gpus=2"]), ["--gpus=2"], True),
        (lambda: parser().parse_args(["--seed", "3"]), ["--seed", "3"], False),  # --data is missing
        (lambda: parser().parse_args(["--data", "x", "--seed", "y"]), ["--seed", "y"], False),
        (lambda: parser().parse_args(["--data", "x", "--gpus-of", "2"]), ["--gpus", "2"], False),
        (by_click, ["--gpus", "2"], True),
        (lambda: 1 / 0, ["--gpus", "2"], False),
    ],
)
def test_who_refuses_just_that_word_does_not_know_it(parse, words, is_refused, capsys):
    misplaced = Misplaced(words)
    len(misplaced.arguments(["a.py", *words]))
    misplaced.look_at_end(raised(parse))
    assert misplaced.why == (REFUSED if is_refused else "")


def test_options_are_those_of_the_command():
    of_run, of_explore = options_of(run), options_of(explore)
    assert [of_run[name] for name in ("--world-size", "--nproc_per_node", "--open")] == [True, True, False]
    assert "--keep-going" in of_explore
    assert "--keep-going" not in of_run
    words = ["--lr", "0.1", "--gpus", "2", "--open", "x", "--seed=3", "2"]
    assert misplaced_words(words, of_run) == ["--gpus", "2", "--open", "--seed=3"]
