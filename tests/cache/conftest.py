"""A profile for runs that only ask whether a test fails, not for the smallest reason why."""

from hypothesis import Phase, settings

settings.register_profile("faults", phases=[Phase.explicit, Phase.generate], report_multiple_bugs=False)
