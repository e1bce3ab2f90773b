"""Records of real jobs, as files: found, opened with care, and read."""
