"""Real jobs on this machine: processes on real gloo, not simulated, that are watched and always ended.

Two kinds. A scenario (`--transport processes`): one process for each rank, with a supervisor that reports how it ended;
begin in `job_result.py`. A command of the user (`diagnose --torchrun`): its ranks write their records, and it is ended
when nothing moves; begin in `watched_job.py`.
"""
