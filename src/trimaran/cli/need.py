"""What a command needs beyond the core installation."""

from importlib.util import find_spec


def need_torch(command: str) -> None:
    """Planning installs without PyTorch; a command that runs the engine says so where it is missing."""
    if find_spec("torch") is None:
        from trimaran.spec import Mistake

        raise Mistake(f"`{command}` needs PyTorch, which is not installed here: pip install 'trimaran[train]'.")
