"""The cache inside real engines. Each module imports its engine only when it is used; the core imports none."""
