"""NCCL's flight recorder: the last collectives of every rank, dumped when one of them times out."""

from pathlib import Path


def flight_recorder(folder: Path) -> dict[str, str]:
    """Environment variables; the dumps are `flight-` and the rank. Writing to a pipe `flight-pipe-…` requests one."""
    return {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",  # PyTorch's default: a timeout ends the rank, without NCCL's clean-up
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(folder / "flight-"),
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(folder / "flight-pipe-"),
    }
