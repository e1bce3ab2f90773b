"""The count of synchronising forwards by itself; with both engines in tests/attribution/test_steps.py."""

from ddpsim.ddp.backward_progress import StepCounter


def forwards(steps, *modes):
    for mode in modes:
        steps.begin_forward(is_training=mode != "evaluation")
        if mode != "raises":
            steps.end_forward()


def test_each_forward_in_training_mode_counts_from_1():
    steps = StepCounter()
    assert steps.latest == 0
    forwards(steps, "train", "train")
    assert steps.latest == 2
    steps.begin_backward()
    assert steps.latest == 2


def test_a_forward_takes_the_place_of_one_that_raised_and_of_one_before_a_handler():
    steps = StepCounter()
    forwards(steps, "raises", "raises", "train")
    assert steps.latest == 1
    try:
        raise MemoryError
    except MemoryError:
        forwards(steps, "train")
        assert steps.latest == 1
        forwards(steps, "train")
        assert steps.latest == 2
    steps.begin_backward()
    steps.end_backward()
    forwards(steps, "raises", "evaluation", "train")
    assert steps.latest == 3


def test_of_forwards_in_evaluation_mode_the_last_before_a_backward_counts():
    steps = StepCounter()
    forwards(steps, "evaluation", "evaluation")
    assert steps.latest == 0
    steps.begin_backward()
    steps.begin_backward()
    assert steps.latest == 1


def test_a_forward_in_training_mode_makes_up_for_an_evaluation_before_it():
    steps = StepCounter()
    forwards(steps, "train", "evaluation", "train")
    steps.begin_backward()
    assert steps.latest == 2


def test_after_an_error_only_forwards_whose_gradients_were_reduced_count():
    steps = StepCounter()
    for modes in (["train", "train"], ["evaluation"]):
        forwards(steps, *modes)
        steps.begin_backward()
        steps.end_backward()
    assert steps.latest == 3
    forwards(steps, "train", "train")
    steps.begin_backward()
    forwards(steps, "evaluation")
    steps.drop_unreduced_steps()
    steps.begin_backward()
    assert steps.latest == 3


def test_a_rank_that_ran_out_of_input_goes_on_from_where_the_others_are():
    steps = StepCounter()
    forwards(steps, "train", "evaluation")
    steps.align_step(5)
    assert (steps.latest, steps.aligned) == (5, 5)
    steps.begin_backward()
    steps.drop_unreduced_steps()
    forwards(steps, "train")
    assert (steps.latest, steps.aligned) == (6, 5)
