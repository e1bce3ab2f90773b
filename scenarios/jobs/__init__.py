"""Real jobs on this machine: processes on real gloo, not simulated, that are watched and always ended.

There are two kinds of jobs. A scenario (`--transport processes`) has one process per rank, with a supervisor that
reports how it ended; start reading at `job_result.py`. A command of the user (`diagnose --torchrun`) has ranks that
write their records, and is ended when nothing moves; start reading at `watched_job.py`.
"""
