"""What failures do to a training: checkpoints at Daly's interval, work done again, restarts.

Failures of N nodes are a Poisson process of rate N / MTBF. A checkpoint stops the training; a failure loses the work
since the last one and costs a restart, which may fail too.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Failures:
    node_mtbf_hours: float
    checkpoint_seconds: float = 60.0
    restart_seconds: float = 600.0


@dataclass(frozen=True)
class Reliability:
    """What failures do to one job. Goodput: useful time over wall time."""

    mtbf_hours: float
    checkpoint_every_minutes: float  # of training between two checkpoints
    checkpoint_share: float  # of the wall time, writing checkpoints that count
    lost_share: float  # of the wall time, work and checkpoints done again, and restarts
    goodput: float


def daly_interval_seconds(checkpoint_seconds: float, mtbf_seconds: float) -> float:
    """Training time between checkpoints that ends a run soonest.

    J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer
    Systems 22 (2006) 303-312: sqrt(2dM)·(1 + sqrt(d/2M)/3 + (d/2M)/9) - d for d < 2M, else M. The restart's
    length does not change it. Its leading term is J. W. Young's (CACM 17, 1974): sqrt(2dM).
    """
    d, m = checkpoint_seconds, mtbf_seconds
    if d >= 2 * m:
        return m
    ratio = d / (2 * m)
    return math.sqrt(2 * d * m) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - d


def expected_goodput(
    interval_seconds: float, checkpoint_seconds: float, restart_seconds: float, mtbf_seconds: float
) -> float:
    """Useful over wall time, exactly, for Poisson failures that may also strike checkpoints and restarts.

    Daly's complete cost function: a segment of t training and d checkpoint takes M·e^(R/M)·(e^((t+d)/M) - 1).
    """
    m = mtbf_seconds
    exponent = (interval_seconds + checkpoint_seconds) / m
    if exponent + restart_seconds / m > 700:  # e^700: no segment ever ends
        return 0.0
    return interval_seconds / (m * math.exp(restart_seconds / m) * math.expm1(exponent))


def reliability(nodes: int, failures: Failures) -> Reliability:
    mtbf = failures.node_mtbf_hours * 3600 / nodes  # of the whole job: any node's failure stops it
    checkpoint = failures.checkpoint_seconds
    # A free checkpoint would be written all the time; then only restarts remain.
    every = daly_interval_seconds(max(checkpoint, 1e-3), mtbf)
    goodput = expected_goodput(every, checkpoint, failures.restart_seconds, mtbf)
    checkpoints = goodput * checkpoint / every
    return Reliability(mtbf / 3600, every / 60, checkpoints, 1 - goodput - checkpoints, goodput)
