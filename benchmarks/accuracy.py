"""How good are predictions? `python benchmarks/accuracy.py` prints the shipped constants on the published rows, and the
error on tables left out of the fit, beside the bars we set ourselves and a trivial rule (constant TFLOP/s).

Takes some minutes: every table is left out in turn.
"""

import sys

import numpy as np

from trimaran.cost.identify import step_flops
from trimaran.learn.score import predict_trials, score
from trimaran.learn.trials import calibration_trials, trainer_of
from trimaran.learn.validate import leave_tables_out
from trimaran.ledger.published import published
from trimaran.spec import Trial, presets

CONTRADICTORY = {"s000-L447"}  # the audit: its time does not scale with its batch
LEFT_OUT = {  # cluster: (framework, what makes a table, bar)
    "jean-zay-a100-80gb": ("megatron-deepspeed", lambda t: t.source.section, 0.04),
    "jean-zay-v100-32gb": ("megatron-deepspeed", lambda t: t.source.section, None),
    "fugaku": ("megatron-deepspeed", lambda t: t.source.section, None),
    "selene": ("megatron-lm", lambda t: f"{t.setup.hidden} x {t.setup.layers}", 0.10),
}
BARS = {"a100-80gb megatron-deepspeed": 0.03, "v100 megatron-deepspeed": 0.06, "a64fx megatron-deepspeed": 0.06}


def constant_rule(trials: list[Trial], tflops: float) -> str:
    """The trivial predictor: every device does the same TFLOP/s whatever the layout; where a vocabulary is stated."""
    errors = []
    for t in trials:
        flops = step_flops(t.setup, "exact-4")
        if flops and t.outcome.seconds and t.setup.devices:
            errors.append(abs(flops / (tflops * 1e12 * t.setup.devices) / t.outcome.seconds - 1))
    return f"{np.mean(errors):.1%} on the {len(errors)} rows whose FLOPs are known"


def main() -> int:
    missed = 0
    rows = calibration_trials(published())
    predicted = predict_trials(rows)
    print("Shipped constants on the published rows (forced corrections applied):")
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        device = (row.setup.device or "").replace("-32gb", "").replace("-16gb", "")
        groups.setdefault(f"{device} {row.setup.framework}", []).append(i)
    for name, members in groups.items():
        found = score([predicted[i] for i in members], name)
        honest = score([predicted[i] for i in members if rows[i].source.label not in CONTRADICTORY], name)
        bar = BARS.get(name)
        verdict = "" if bar is None else f" (bar {bar:.0%}: {'met' if (honest.mape or 1) <= bar else 'MISSED'})"
        missed += "MISSED" in verdict
        print(
            f"  {name:32} {found.rows:5} rows: seconds {found.mape or 0:.2%}, without contradictory rows"
            f" {honest.mape or 0:.2%}{verdict}; 80 % interval holds {found.coverage or 0:.0%}"
        )
        print(f"  {'':32} constant 140 TFLOP/s: {constant_rule([rows[i] for i in members], 140)}")
    whole = score(predicted, "all")
    regrets = [s.regret for s in by_table(predicted) if s.regret is not None]
    print(f"  memory {whole.memory_mape or 0:.2%} (bar 7 %); fit or out of memory: {whole.fit_right} right,", end="")
    print(f" {whole.fit_wrong} wrong; worst regret of a table's top pick {max(regrets):.3f} (bar 1.01)")
    missed += (whole.memory_mape or 1) > 0.07 or whole.fit_wrong > 0 or max(regrets) > 1.01
    tables = [row for row in predicted if row.trial.source.section != "vTrain single node"]
    for row in sorted(tables, key=lambda p: -abs(p.error or 0))[:8]:
        print(f"  resists: {row.trial.source.label} {row.error or 0:+.1%}")
    for name, (framework, table, bar) in LEFT_OUT.items():
        cluster = presets.cluster(name)
        own = [t for t in rows if t.setup.framework == framework and t.setup.device == cluster.device.name]
        left = leave_tables_out(own, cluster, trainer_of, table)
        verdict = "" if bar is None else f" (bar {bar:.0%}: {'met' if left.mape <= bar else 'MISSED'})"
        missed += "MISSED" in verdict or not 0.7 <= left.coverage <= 0.9
        print(f"Tables left out, {name}: {left.mape:.2%}{verdict}; interval holds {left.coverage:.0%} (bar 70-90 %)")
    return min(missed, 1)


def by_table(predicted: list) -> list:  # type: ignore[type-arg]
    tables: dict[str, list] = {}  # type: ignore[type-arg]
    for row in predicted:
        tables.setdefault(row.trial.source.section, []).append(row)
    return [score(rows, name) for name, rows in tables.items() if name != "vTrain single node"]


if __name__ == "__main__":
    sys.exit(main())
