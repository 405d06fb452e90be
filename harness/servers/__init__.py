"""Servers under test: resolve an arm, start it under a guard, wait until it is ready, stop it to the last process."""
