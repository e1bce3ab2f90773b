"""Records of real jobs, as files: found, opened safely, read, and made into scenarios."""
