"""The recorded scenario: out of a run's manifest, as it was when the run was started."""

from __future__ import annotations

import json

from pydantic import ValidationError

from harness.errors import RecordError
from harness.records import Manifest
from harness.scenario import Scenario


def scenario_of(manifest: Manifest) -> Scenario:
    """The scenario a run was started with, narrowed as it was then.

    Raises:
        RecordError: the manifest's scenario does not validate.
    """
    try:
        # Through JSON text: only there do strict models take a list for a tuple.
        return Scenario.model_validate_json(json.dumps(manifest.scenario))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RecordError(f"manifest.json of {manifest.run}: scenario.{where}: {first['msg']}") from None
