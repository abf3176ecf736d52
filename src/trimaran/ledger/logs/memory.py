"""Memory: the peak each rank printed, by rank, so that the fullest device and the fullest stage can be told."""

from dataclasses import dataclass, field

_MIB_PER_GIB = 1024.0


@dataclass
class Memory:
    """Peaks in MiB: what Megatron prints as 'MB' is bytes / 1024²."""

    peaks: dict[int, float] = field(default_factory=dict)
    after: dict[int, int] = field(default_factory=dict)

    def add(self, rank: int, after: int, mib: float) -> None:
        self.peaks[rank] = max(mib, self.peaks.get(rank, 0.0))
        self.after[rank] = after

    def is_of_another_run(self, rank: int, after: int, mib: float) -> bool:
        """A rank reports later and later iterations: going back means it was started again."""
        known = self.after.get(rank)
        return known is not None and (after < known or (after == known and mib != self.peaks[rank]))

    def join(self, other: "Memory") -> None:
        for rank, mib in other.peaks.items():
            self.add(rank, other.after[rank], mib)

    def peak_gib(self) -> float | None:
        return max(self.peaks.values()) / _MIB_PER_GIB if self.peaks else None

    def by_stage_gib(self, devices: int | None, pp: int | None) -> tuple[float, ...]:
        """Pipeline stages are the slowest axis of Megatron's rank order; empty unless every stage reported."""
        if not devices or not pp or devices % pp:
            return ()
        stages: dict[int, float] = {}
        for rank, mib in self.peaks.items():
            stage = rank // (devices // pp)
            stages[stage] = max(mib / _MIB_PER_GIB, stages.get(stage, 0.0))
        return tuple(gib for _, gib in sorted(stages.items())) if len(stages) == pp and max(stages) < pp else ()
