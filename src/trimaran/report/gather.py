"""The campaigns of a report: from the published measurements, a sweep's folder, the ledger, or a plan."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from trimaran.export.quoting import shell_word
from trimaran.lab.sweep_folder import load_sweep_folder
from trimaran.learn.trials import possible_job
from trimaran.ledger.audit import Corrected, corrected
from trimaran.ledger.published import published
from trimaran.ledger.query import Filter
from trimaran.ledger.results import MODEL
from trimaran.ledger.store import Ledger
from trimaran.planner.plan import Plan, make_plan
from trimaran.planner.question import Question
from trimaran.planner.tables import short_layout
from trimaran.report.campaign import Campaign, Row, TrialPrediction, rows_of
from trimaran.spec import Job, Mistake, Outcome, Setup, Source, Trial

TABLES = ("published.csv",)  # BigScience, Fugaku and Megatron-LM; vTrain's rows are of one kind and too many to read

OnProgress = Callable[[str], None]  # called with what is being done


def published_campaigns(on_progress: OnProgress) -> list[Campaign]:
    on_progress("auditing the published measurements")
    view = corrected(published())
    view = replace(view, trials=tuple(trial for trial in view.trials if trial.source.file in TABLES))
    commands = ("trimaran import --published", "trimaran audit --published --fix", "trimaran score --published")
    return _campaigns(view, commands, on_progress)


def ledger_campaigns(ledger: Ledger, where: Sequence[Filter], on_progress: OnProgress) -> list[Campaign]:
    on_progress("auditing the ledger")
    view = ledger.corrected(where)
    if not view.trials:
        raise Mistake(
            f"{ledger.path} holds no trial"
            + (" that matches these conditions" if where else "")
            + "; `trimaran results` lists the trials, `trimaran import --published` adds the published ones."
        )
    asked = " ".join(shell_word(f"{each.column}{each.operator}{each.value}") for each in where)
    return _campaigns(view, (f"trimaran results {asked}".strip(), "trimaran audit --ledger"), on_progress)


def sweep_campaigns(folder: Path, ledger: Ledger, on_progress: OnProgress) -> list[Campaign]:
    """With the predictions made before each trial ran."""
    sweep = load_sweep_folder(folder)
    view = ledger.corrected((Filter("source_table", "=", sweep.name),))
    if not view.trials:
        raise Mistake(f"{ledger.path} has no trial of the sweep in {folder}; name the ledger it ran with by --ledger.")
    before = {
        c.job.to_json(): TrialPrediction(c.seconds, c.low, c.high, c.memory_gib, c.fits) for c in sweep.candidates
    }
    commands = (f"trimaran sweep {shell_word(f'{folder}/sweep.yaml')} --folder {shell_word(f'{folder}-again')}",)
    return _campaigns(view, commands, on_progress, before)


def planned_campaigns(job: Job, on_progress: OnProgress) -> list[Campaign]:
    """Before anything ran: the planner's best layouts and the job's own, as pending trials."""
    on_progress(f"planning {job.name}")
    plan = _plan(job)
    if plan is None:
        raise Mistake(f"No layout of {job.name} fits {job.cluster.name}; `trimaran fit` says what would.")
    jobs = [each.job for each in plan]
    jobs += [job] if job.layout not in [each.layout for each in jobs] else []
    own = f"{job.name}, as it is"
    trials = [_pending_trial(each, own if each.layout == job.layout else short_layout(each.layout)) for each in jobs]
    rows = sorted(rows_of(trials), key=lambda row: row.predicted.seconds if row.predicted else 0.0)
    return [
        Campaign(
            name=job.name,
            about=f"The plan for {job.cluster.devices} devices of {job.cluster.name}, {job.trainer.name}; not run yet",
            rows=tuple(rows),
            best=frozenset((rows[0].trial.id,)),
            comparable=tuple(rows),
            job=rows[0].trial.job,
            plan=plan,
            findings=(),
            commands=(),
        )
    ]


def _pending_trial(job: Job, label: str) -> Trial:
    source = Source(kind="run", table="the plan", label=label)
    return Trial(id=label, setup=Setup.of_job(job), job=job, outcome=Outcome(status="pending"), source=source)


def _campaigns(
    view: Corrected,
    commands: tuple[str, ...],
    on_progress: OnProgress,
    before: dict[str, TrialPrediction] | None = None,
) -> list[Campaign]:
    groups = defaultdict(list)
    for trial in view.timed():
        groups[campaign_name(trial)].append(trial)
    campaigns = []
    for name, trials in groups.items():
        on_progress(f"planning {name}")
        ids = {trial.corrects or trial.id for trial in trials}
        rows = rows_of(trials, before)
        comparable = _comparable(rows)
        job = possible_job(comparable[0].trial) if comparable else None
        campaigns.append(
            Campaign(
                name=name,
                about=_about(trials),
                rows=rows,
                best=_best(rows),
                comparable=comparable,
                job=job,
                plan=_plan(job) if job else None,
                findings=tuple(finding for finding in view.findings if finding.trial in ids),
                commands=commands,
            )
        )
    return campaigns


def campaign_name(trial: Trial) -> str:
    """The sweep of a run, the document or file of a row; each on its device."""
    source = trial.source
    name = source.table if source.kind == "run" else source.section.partition(" / ")[0] or source.file
    return f"{name or 'runs'}, {trial.setup.device or 'device unknown'}"


def _comparable(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Rows of one model and batch, whose seconds can be compared: those with the most measurements, of equals the
    largest model."""
    groups = defaultdict(list)
    for row in rows:
        if row.seconds is not None:
            groups[_model_and_batch(row.trial)].append(row)
    largest = max(groups.values(), key=lambda rows: (len(rows), _size(rows[0].trial)), default=[])
    return tuple(sorted(largest, key=lambda row: row.seconds or 0.0))


def _size(trial: Trial) -> int:
    return (trial.setup.layers or 0) * (trial.setup.hidden or 0) ** 2


def _model_and_batch(trial: Trial) -> tuple[object, ...]:
    return (*(getattr(trial.setup, name) for name in MODEL), trial.setup.gbs)


def _best(rows: Sequence[Row]) -> frozenset[str]:
    """The fastest of each model and batch; rows are sorted, the fastest first."""
    best: dict[tuple[object, ...], str] = {}
    for row in rows:
        if row.seconds is not None:
            best.setdefault(_model_and_batch(row.trial), row.trial.id)
    return frozenset(best.values())


def _about(trials: Sequence[Trial]) -> str:
    def most(values: list[str | None]) -> str:
        return ", ".join(value for value, _ in Counter(v for v in values if v).most_common(3))

    setups = [trial.setup for trial in trials]
    sizes = most([setup.size_label for setup in setups])
    text = f"{len(trials)} trials of {most([setup.framework for setup in setups]) or 'unknown software'}"
    text += f" on {most([setup.device for setup in setups]) or 'unknown devices'}"
    return text + (f"; models of {sizes}" if sizes else "")


def _plan(job: Job) -> Plan | None:
    """The same question without the layout; None where no layout fits."""
    return make_plan(Question.of_job(job)) or None
