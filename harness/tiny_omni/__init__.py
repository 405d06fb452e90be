"""The reference server: a small, real omni engine for any machine (docs/design.md, section 10).

`python -m harness.tiny_omni --port 8000 --enable-prefix-caching` serves it.
"""
