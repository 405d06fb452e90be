"""What the cache costs an engine, case by case, and against vLLM-Omni's own manager in the same run.

    python -m prefix_cache.bench --peer PYTHON

Both caches run in processes of their own that receive the same steps, batch by batch in turn. Everything a peer's
interpreter imports from here needs the standard library, numpy and torch, and imports its siblings relatively.
"""
