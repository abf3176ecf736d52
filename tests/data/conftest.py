"""The command as a user calls it, as in the tests of the commands."""

from tests.cli.conftest import trimaran

__all__ = ["trimaran"]
