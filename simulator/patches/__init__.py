"""What is replaced in torch besides groups and stores, so that ranks can run in one process."""
