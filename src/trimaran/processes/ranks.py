"""Start the ranks of a run on this machine, or join those that torchrun or SLURM started."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

from trimaran.processes.failure import RankFailure, failure_of
from trimaran.processes.forked import ForkedRanks
from trimaran.processes.hang import collect_evidence
from trimaran.processes.heartbeat import add_wait, read_heartbeats
from trimaran.processes.rank import SECONDS_TO_EXPLAIN, Rank, Receive, RunEnd, start_heartbeat
from trimaran.processes.rendezvous import Rendezvous
from trimaran.processes.signals import ignore_stop_signals


def run_ranks(
    world_size: int,
    main: Callable[[Rank], int],
    timeout: timedelta,
    rendezvous: Rendezvous | None = None,
    receive: Receive = lambda message: None,
    heartbeats: Path | None = None,
) -> RunEnd:
    """`main` in every rank: forked here, or in this process as one of those that have a rendezvous.
    `timeout`: how long a rank waits for the others; `receive`: called with what ranks send; `heartbeats`: their folder,
    for ranks forked here by default a temporary one."""
    if rendezvous is None:
        return ForkedRanks(world_size, timeout, heartbeats).run(main, receive)
    return _join(rendezvous, main, timeout, receive, heartbeats)


def _join(
    rendezvous: Rendezvous,
    main: Callable[[Rank], int],
    timeout: timedelta,
    receive: Receive,
    heartbeats: Path | None,
) -> RunEnd:
    """Be one rank of a run that torchrun or SLURM started, and watches."""
    import torch.distributed as dist

    os.environ.update(rendezvous.environment)
    store, heartbeat = None, start_heartbeat(heartbeats, rendezvous.rank)
    try:
        if rendezvous.world_size > 1:
            store, _, _ = next(dist.rendezvous("env://", timeout=timeout))
            # torchrun's store outlives an attempt, and has the addresses of its dead ranks.
            store = dist.PrefixStore(f"attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        rank = Rank(rendezvous.rank, rendezvous.local_rank, rendezvous.world_size, store, receive, heartbeat)
        return RunEnd(main(rank))
    except Exception as error:
        failure = failure_of(error, rendezvous.rank)
        ignore_stop_signals()  # torchrun and srun end the ranks of a failed one, before this has said why
        heartbeat.leave_traceback(error)
        if heartbeats is not None:
            add_wait(heartbeats, rendezvous.rank, failure.waits_in)
        if not _is_first_to_report(store, failure):
            return RunEnd(failure.code)
        if heartbeats is None or not failure.timed_out:
            return RunEnd(failure.code, failure.sentence)
        beats = [beat for beat in read_heartbeats(heartbeats) if beat["rank"] < rendezvous.world_size]
        reason, _ = collect_evidence(heartbeats, sorted(beats, key=lambda beat: int(beat["rank"])))
        return RunEnd(failure.code, f"{failure.sentence} {reason}")


def _is_first_to_report(store: Any, failure: RankFailure) -> bool:
    """One rank reports: the one with the cause, which the others give a moment to come first."""
    if store is None:
        return True
    if failure.is_consequence:
        time.sleep(SECONDS_TO_EXPLAIN)
    counts: list[int] = []
    # In a thread, because a store whose rank is stopped never answers.
    asking = Thread(target=_count_report, args=(store, counts), daemon=True)
    asking.start()
    asking.join(SECONDS_TO_EXPLAIN)
    return counts in ([], [1])


def _count_report(store: Any, counts: list[int]) -> None:
    import torch.distributed as dist

    with suppress(dist.DistError):  # the store went down with its rank
        counts.append(int(store.add("trimaran/spoken", 1)))
