"""Pickles that come from anywhere."""

import collections
import os
import pickle
import resource

import pytest

from ddpsim.simulator.records.plain_pickle import load_plain
from ddpsim.simulator.records.rank_record import RecordError
from tests.kit.rows import rows


class Runs:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


@rows("protocol", range(2, 6))
def test_plain_values_are_read(protocol):
    value = {"a": [1, -(2**70), 0.5, None, True, ("x", "y")], "b": {}}
    assert load_plain(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_imported_and_nothing_run(protocol, tmp_path):
    left = tmp_path / "left"
    for value in (Runs(os.mkdir, str(left)), Runs(eval, "1"), collections.OrderedDict(), {"a": [Runs(os.getcwd)]}):
        with pytest.raises(RecordError, match=r"tries to import \S+, expected plain values; nothing was run"):
            load_plain(pickle.dumps(value, protocol))
    assert not left.exists()


@rows(
    "code",
    [
        b"\x80\x02\x82\x01.",  # of copyreg's registry
        b"\x80\x02]}b.",  # a state for a list
        b"\x80\x02]P1\n.",
        b"\x80\x02K\x01Q.",  # outside the pickle
        b"\x80\x02(ios\nsystem\n.",
        b"\x80\x05\x97.",  # a buffer from outside
        b"\x80\x02]]R.",  # call a list
        b"\x80\x02]]\x81.",
        b"\x80\x09.",
        b"\x80",
        b"\x80\x02" + b"(" * 100_000,
        b"\x80\x02" + b"]" + b"]a" * 1,
    ],
)
def test_hostile_and_damaged_pickles_are_refused_in_one_line(code):
    with pytest.raises(RecordError) as error:
        load_plain(code)
    assert "\n" not in str(error.value)


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is limited on Linux only")
def test_a_few_bytes_cannot_take_gigabytes():
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(RecordError, match="asks for more memory than it can need"):
        load_plain(b"\x80\x02]r\xff\xff\xff\x7f.")
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_each_cut_of_a_pickle_is_one_line():
    data = pickle.dumps({"version": "2.10", "entries": [{"a": 1, "b": ["x", 2**40]}] * 3}, 2)
    for length in range(1, len(data)):
        with pytest.raises(RecordError) as error:
            load_plain(data[:length])
        assert "\n" not in str(error.value)


def test_deep_nesting_ends():
    data = b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b"."
    value = load_plain(data)
    assert isinstance(value, list)
