"""A seeded fuzzer of the commands and of everything they read. `fuzz(seed, seconds)` returns what went wrong."""

from tests.fuzz.fuzzer import Failure, fuzz, replay

__all__ = ["Failure", "fuzz", "replay"]
