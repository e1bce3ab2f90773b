"""Records of real jobs, as files: found, opened safely, and read.

This package holds no scenarios. It is in scenarios/ because it reads and writes files and makes scenarios of records.
"""
