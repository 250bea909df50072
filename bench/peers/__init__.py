"""Our deletions beside other people's tools, on the same rows: ``python -m bench.peers``."""
