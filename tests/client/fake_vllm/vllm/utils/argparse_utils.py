"""SIMULATED: stands where vLLM's argument parser does."""

from argparse import ArgumentParser as FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser"]
