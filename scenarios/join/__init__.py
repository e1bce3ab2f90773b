"""The join matrix: the cases that the join feature was born with, as declared scenarios for both engines."""
