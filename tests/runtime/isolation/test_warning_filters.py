"""Warnings: filters and `catch_warnings` per rank, and which warnings a rank sees."""

import warnings


def warn(text):
    warnings.warn(text, UserWarning, stacklevel=1)


def test_interleaved_catch_warnings(interleave):
    def program(rank):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always" if rank else "ignore")
            yield
            warn("during")
            if rank == 1:
                yield  # leaves after the others
            warn("after")
        yield
        return [str(warning.message) for warning in caught]

    before = (warnings.filters, list(warnings.filters), warnings.showwarning, warnings._showwarnmsg_impl)
    assert interleave(program, 3) == [[], ["during", "after"], ["during", "after"]]
    assert (warnings.filters, list(warnings.filters), warnings.showwarning, warnings._showwarnmsg_impl) == before
    assert warnings.filters is before[0]


def test_ranks_with_the_filters_of_the_host_share_what_was_shown(interleave):
    def program(rank):
        warn("the same on each rank")
        yield

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        interleave(program, 4)
    assert len(caught) == 1


def test_the_host_sees_its_warning_after_a_rank_recorded_it(interleave):
    def program(rank):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            warn("everywhere")
            yield
        return len(caught)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        assert interleave(program, 2) == [1, 1]
        warn("everywhere")
    assert len(caught) == 1
