"""The command as a user calls it, to compare with."""

from tests.cli.conftest import trimaran

__all__ = ["trimaran"]
