"""Two nodes of two ranks: real processes, with host names that are given instead of asked."""

from multiprocessing import get_context
from typing import Any

import pytest

from tests.processes import LIMIT_SECONDS


def _rank(rank: int, folder: str, results: Any) -> None:
    import torch
    import torch.distributed as dist

    from trimaran.probe.collectives import concurrent_groups, time_collective
    from trimaran.probe.timing import Stopwatch
    from trimaran.probe.world import init_probe_world

    torch.set_num_threads(1)
    world = init_probe_world(rank, rank % 2, 4, dist.FileStore(f"{folder}/store", 4), host=f"node{rank // 2}")
    watch = Stopwatch(world, round_seconds=0.002, max_rounds=3)
    timings = [
        time_collective(watch, groups, kind, 4096) for groups in concurrent_groups(world) for kind in groups.kinds
    ]
    if rank == 0:
        results.put([c.to_dict() for c in timings])
    world.mean(0.0)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    context = get_context("spawn")
    results = context.Queue()
    folder = str(tmp_path_factory.mktemp("store"))
    ranks = [context.Process(target=_rank, args=(rank, folder, results)) for rank in range(4)]
    for process in ranks:
        process.start()
    try:
        found: list[dict[str, Any]] = results.get(timeout=LIMIT_SECONDS)
    finally:
        for process in ranks:
            process.join(20)
            process.kill()
            process.join()
        results.close()
    return found


def test_groups_inside_and_between_nodes_are_measured_apart(seen: list[dict[str, Any]]) -> None:
    places = {(c["where"], c["kind"], c["ranks"], c["at_once"]) for c in seen}
    assert places == {
        ("inside", "all-reduce", 2, 2),
        ("inside", "all-gather", 2, 2),
        ("inside", "reduce-scatter", 2, 2),
        ("inside", "send", 2, 2),
        ("between", "all-reduce", 4, 1),
        ("between", "all-gather", 4, 1),
        ("between", "reduce-scatter", 4, 1),
        ("between", "all-reduce", 2, 2),
        ("between", "send", 2, 2),
    }
    assert all(c["bytes"] == 4096 and c["seconds"] > 0 for c in seen)
