"""What the commands of `bench` do, behind the parser in `harness.cli`."""
