"""The threaded shell: ranks as threads, one baton, one scheduler."""
