"""What each rank of a scenario runs: a function of the user's, or the steps of a program."""
