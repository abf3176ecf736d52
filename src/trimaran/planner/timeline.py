"""A pipeline's timeline: when each stage runs which micro batch, simulated in the order its schedule prescribes."""

from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

from trimaran.spec.trainer import Schedule

Pass = Literal["forward", "backward", "weights"]


class Work(NamedTuple):
    """One pass of one micro batch through one chunk of a stage's layers."""

    pass_: Pass
    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True)
class Span:
    """A piece of work and when a stage does it, in seconds from the start of the step."""

    stage: int
    work: Work
    start: float
    end: float


def timeline(
    schedule: Schedule, forward: list[float], backward: list[float], micro_batches: int, virtual: int = 1
) -> list[Span]:
    """Every span of a step. `forward` and `backward`: seconds of one micro batch on each stage, all chunks together."""
    stages = len(forward)
    orders = [deque(order(schedule, stage, stages, micro_batches, virtual)) for stage in range(stages)]
    deferred: list[deque[Work]] = [deque() for _ in range(stages)]  # zero-bubble: weight gradients that fill the gaps
    split = schedule == "zero-bubble"
    free, done, spans = [0.0] * stages, dict[tuple[Work, int], float](), list[Span]()

    def run(stage: int, work: Work, start: float) -> None:
        seconds = (forward if work.pass_ == "forward" else backward)[stage] / virtual
        free[stage] = start + (seconds / 2 if split and work.pass_ != "forward" else seconds)
        done[work, stage] = free[stage]
        spans.append(Span(stage, work, start, free[stage]))
        if split and work.pass_ == "backward":
            deferred[stage].append(Work("weights", work.micro_batch, work.chunk))

    while any(orders):
        moved = False
        for stage in range(stages):
            while orders[stage] and (ready := _ready(orders[stage][0], stage, stages, virtual, done)) is not None:
                while deferred[stage] and free[stage] < ready:
                    run(stage, deferred[stage].popleft(), free[stage])
                run(stage, orders[stage].popleft(), max(free[stage], ready))
                moved = True
        if not moved:
            raise ValueError(f"the {schedule} schedule cannot run {micro_batches} micro batches on {stages} stages")
    for stage in range(stages):
        while deferred[stage]:
            run(stage, deferred[stage].popleft(), free[stage])
    return spans


def order(schedule: Schedule, stage: int, stages: int, micro_batches: int, virtual: int = 1) -> list[Work]:
    """The passes of a stage, in order. 1F1B: as many forwards as stages follow, then a backward after each forward."""
    if schedule == "interleaved":
        forwards = [_interleaved(k, stages, virtual) for k in range(micro_batches * virtual)]
        warm_up = (stages - stage - 1) * 2 + (virtual - 1) * stages
    else:
        forwards = [(micro, 0) for micro in range(micro_batches)]
        warm_up = micro_batches if schedule == "gpipe" else stages - stage - 1
    backwards = [(micro, virtual - 1 - chunk) for micro, chunk in forwards]
    warm_up = min(warm_up, len(forwards))
    works = [Work("forward", *forward) for forward in forwards[:warm_up]]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        works += [Work("forward", *forward), Work("backward", *backward)]
    return works + [Work("backward", *backward) for backward in backwards[len(forwards) - warm_up :]]


def idle_share(spans: list[Span], stages: int) -> float:
    """Share of the stages' time, between the first start and the last end, in which they are idle."""
    whole = max(span.end for span in spans)
    return 1 - sum(span.end - span.start for span in spans) / (whole * stages)


def _interleaved(k: int, stages: int, virtual: int) -> tuple[int, int]:
    """Megatron's order: as many micro batches as stages through the first chunk, then through the second, ..."""
    round_, inside = divmod(k, stages * virtual)
    chunk, micro = divmod(inside, stages)
    return round_ * stages + micro, chunk


def _ready(work: Work, stage: int, stages: int, virtual: int, done: dict[tuple[Work, int], float]) -> float | None:
    """When the inputs of this work are available, or None while that is not known."""
    if work.pass_ == "forward":
        if stage == 0 and work.chunk == 0:
            return 0.0
        before = (work, stage - 1) if stage else (work._replace(chunk=work.chunk - 1), stages - 1)
        return done.get(before)
    if stage == stages - 1 and work.chunk == virtual - 1:
        return done.get((work._replace(pass_="forward"), stage))
    after = (work, stage + 1) if stage < stages - 1 else (work._replace(chunk=work.chunk + 1), 0)
    return done.get(after)
