"""`python -m harness.tiny_omni`: see `harness.tiny_omni.serve`."""

from __future__ import annotations

from harness.tiny_omni.serve import main

if __name__ == "__main__":
    raise SystemExit(main())
