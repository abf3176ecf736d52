"""trimaran learn: the constants of a cluster, from what was measured on it."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from trimaran.cli.options import LedgerOption
from trimaran.cli.show import JsonOption, print_json, print_table
from trimaran.cost.constants import NAMES, priors_of
from trimaran.learn.learned import Learned
from trimaran.learn.learned import learn as fit
from trimaran.learn.trials import calibration_trials, trainer_of
from trimaran.ledger.published import published as shipped
from trimaran.ledger.store import Ledger, ledger_path
from trimaran.spec import Mistake, Trial
from trimaran.spec.files import check_folder_of, load_cluster, save


def learn(
    on: Annotated[str, typer.Option(help="The cluster: a preset's name or a file.")],
    trainer: Annotated[str, typer.Option(help="Trainer of the trials that do not name a known one.")] = "trimaran",
    framework: Annotated[str, typer.Option(help="Only trials of this framework, such as megatron-lm.")] = "",
    published: Annotated[bool, typer.Option("--published", help="The published figures instead of a ledger.")] = False,
    by: Annotated[
        str,
        typer.Option(help="Tables to leave out: by section (of runs: by tp and pp), or by shape (hidden x layers)."),
    ] = "section",
    with_stragglers: Annotated[
        bool, typer.Option("--with-stragglers", help="Also trials in which a rank was slower than its peers.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the cluster with its constants.")] = None,
    ledger: LedgerOption = "",
    json: JsonOption = False,
) -> None:
    """Fit a cluster's constants to measured trials, judge the fit on tables left out, and write a cluster file.

    Example: `trimaran learn --on jean-zay-a100-80gb --published -o jean-zay.yaml`
    """
    if by not in ("section", "shape"):
        raise Mistake(f"--by is {by!r}, but tables are by section or by shape.")
    if output is not None:
        check_folder_of(output)
    cluster = load_cluster(on)
    if published:
        reading = shipped()
    else:
        with Ledger.read(ledger_path(ledger)) as store:
            reading = store.reading()
    rows = [t for t in calibration_trials(reading, cluster) if not framework or t.setup.framework == framework]
    slow = [] if with_stragglers else [trial for trial in rows if trial.outcome.straggler]
    rows = [trial for trial in rows if trial not in slow]
    if slow:
        word = "trial was" if len(slow) == 1 else "trials were"
        print(f"{len(slow)} {word} left out: a rank was a straggler; --with-stragglers keeps such.", file=sys.stderr)

    def table(trial: Trial) -> str:
        if by == "shape":
            return f"{trial.setup.hidden} x {trial.setup.layers}"
        return trial.source.section or f"tp {trial.setup.tp}, pp {trial.setup.pp}"

    with Console(stderr=True).status("fitting") as status:
        learned = fit(
            rows,
            cluster,
            lambda trial: trainer_of(trial, trainer),
            table,
            lambda done, of: status.update(f"fitting without table {done + 1} of {of}"),
        )
    if output is not None:
        save(learned.cluster, output)
    _print(learned, output, json)


def _print(learned: Learned, output: Path | None, json: bool) -> None:
    priors, left = priors_of(learned.cluster), learned.left_out
    if json:
        judged = {"mape": left.mape, "coverage": left.coverage, "residual": left.residual} if left else None
        print_json(
            {
                "rows": learned.rows,
                "seconds_mape": learned.seconds_error,
                "memory_mape": learned.memory_error,
                "left_out": judged,
                "constants": learned.cluster.constants,
                "spreads": learned.cluster.spreads,
                "undetermined": learned.fitted.undetermined,
            }
        )
        return
    rows = [
        (
            name,
            f"{priors[name].value:g}",
            f"{learned.cluster.constants[name]:.4g}",
            f"± {learned.fitted.spreads[name]:.0%}",
            "not determined" if name in learned.fitted.undetermined else "",
            priors[name].meaning,
        )
        for name in NAMES
    ]
    header = ("name", "prior", "learned", "left open", "by these data", "meaning")
    print_table("Constants", header, rows, left=(0, 4, 5))
    print(f"{learned.rows} measured times: mean error {learned.seconds_error:.1%}", end="")
    print(f", memory {learned.memory_error:.1%}." if learned.memory_error is not None else ".")
    if left:
        held = f"the 80 % interval holds {left.coverage:.0%} of their rows"
        print(f"Tables left out in turn: mean error {left.mape:.1%}; {held}.")
    if output is not None:
        print(f"Written to {output}; use it with --on {output}.")
