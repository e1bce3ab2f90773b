"""The join matrix: trainings with uneven inputs under `join()`, declared as files, for torch's and ddpsim's engine."""
