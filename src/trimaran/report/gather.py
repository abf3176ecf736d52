"""Where a report comes from: the published figures, a sweep's folder, or whatever the ledger holds."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from trimaran.lab.folder import resume
from trimaran.ledger.audit import Corrected, Finding, corrected
from trimaran.ledger.published import published
from trimaran.ledger.query import Filter
from trimaran.ledger.reading import Reading
from trimaran.ledger.results import MODEL
from trimaran.ledger.store import Ledger
from trimaran.planner.plan import Plan, make_plan
from trimaran.planner.question import Question
from trimaran.report.campaign import Campaign, Expected, Row
from trimaran.report.jobs import job_of
from trimaran.report.rows import expected_of, rows_of
from trimaran.report.words import layout_words
from trimaran.spec import Job, Mistake, Outcome, Setup, Source, Trial

TABLES = ("published.csv",)  # BigScience, Fugaku and Megatron-LM; vTrain's rows are of one kind and too many to read

Tell = Callable[[str], None]


def of_published(tell: Tell) -> list[Campaign]:
    tell("auditing the published figures")
    view = corrected(published())
    view = replace(view, trials=tuple(trial for trial in view.trials if trial.source.file in TABLES))
    commands = ("trimaran import --published", "trimaran audit --published --fix", "trimaran score --published")
    return _campaigns(view, commands, tell)


def of_ledger(ledger: Ledger, where: Sequence[Filter], tell: Tell) -> list[Campaign]:
    tell("auditing the ledger")
    view = corrected(ledger.reading())  # everything, since rows that the conditions exclude are evidence too
    if where:
        chosen = {id_ for (id_,) in ledger.rows(("id",), where)}
        view = replace(view, trials=tuple(t for t in view.trials if chosen & {t.id, t.corrects}))
    if not view.trials:
        raise Mistake(
            f"{ledger.path} holds no trial"
            + (" that these conditions leave" if where else "")
            + "; `trimaran results` shows what there is, `trimaran import --published` brings figures."
        )
    asked = " ".join(f"'{each.column}{each.operator}{each.value}'" for each in where)
    return _campaigns(view, (f"trimaran results {asked}".strip(), "trimaran audit --ledger"), tell)


def of_sweep(folder: Path, ledger: Ledger, tell: Tell) -> list[Campaign]:
    """With what was predicted before each trial ran."""
    begun = resume(folder)
    trials = ledger.trials((Filter("source_table", "=", begun.name),))
    if not trials:
        raise Mistake(f"{ledger.path} has no trial of the sweep in {folder}; give the ledger it ran with: --ledger.")
    before = {candidate.job.to_json(): expected_of(candidate) for candidate in begun.candidates}
    commands = (f"trimaran sweep {folder / 'sweep.yaml'} --folder {folder}-again",)
    return _campaigns(corrected(Reading(tuple(trials))), commands, tell, before)


def of_job(job: Job, tell: Tell) -> list[Campaign]:
    """Before anything was run: the planner's best layouts, and the job's own among them, as trials to come."""
    tell(f"planning {job.name}")
    plan = _plan(job)
    if plan is None:
        raise Mistake(f"No layout of {job.name} fits {job.cluster.name}; `trimaran fit` says what would.")
    jobs = [each.job for each in plan]
    jobs += [job] if job.layout not in [each.layout for each in jobs] else []
    own = f"{job.name}, as it is"
    trials = [_to_come(each, own if each.layout == job.layout else layout_words(each.layout)) for each in jobs]
    rows = sorted(rows_of(trials), key=lambda row: row.expected.seconds if row.expected else 0.0)
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


def _to_come(job: Job, label: str) -> Trial:
    source = Source(kind="run", table="the plan", label=label)
    return Trial(id=label, setup=Setup.of_job(job), job=job, outcome=Outcome(status="pending"), source=source)


def _campaigns(
    view: Corrected, commands: tuple[str, ...], tell: Tell, before: dict[str, Expected] | None = None
) -> list[Campaign]:
    groups = defaultdict(list)
    for trial in view.timed():
        groups[belongs_to(trial)].append(trial)
    made = []
    for name, members in groups.items():
        tell(f"planning {name}")
        of_these = {trial.corrects or trial.id for trial in members}
        mine = tuple(finding for finding in view.findings if finding.trial in of_these)
        made.append(_campaign(name, members, mine, commands, before or {}))
    return made


def belongs_to(trial: Trial) -> str:
    """The sweep of a run, the document of a table's row, else the software; each on its device."""
    source = trial.source
    name = source.table if source.kind == "run" else source.section.partition(" / ")[0] or source.file
    return f"{name or 'runs'}, {trial.setup.device or 'device unknown'}"


def _campaign(
    name: str,
    trials: Sequence[Trial],
    findings: tuple[Finding, ...],
    commands: tuple[str, ...],
    before: dict[str, Expected],
) -> Campaign:
    rows = rows_of(trials, before)
    comparable = _comparable(rows)
    job = next((job for row in comparable[:1] if (job := job_of(row.trial))), None)
    return Campaign(
        name=name,
        about=_about(trials),
        rows=rows,
        best=_best(rows),
        comparable=comparable,
        job=job,
        plan=_plan(job) if job else None,
        findings=findings,
        commands=commands,
    )


def _comparable(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Of the model and batch with the most measured rows, the largest model of several: seconds of different work say
    nothing beside each other."""
    groups = defaultdict(list)
    for row in rows:
        if row.seconds is not None:
            groups[_work(row.trial)].append(row)
    largest = max(groups.values(), key=lambda rows: (len(rows), _size(rows[0].trial)), default=[])
    return tuple(sorted(largest, key=lambda row: row.seconds or 0.0))


def _size(trial: Trial) -> int:
    return (trial.setup.layers or 0) * (trial.setup.hidden or 0) ** 2


def _work(trial: Trial) -> tuple[object, ...]:
    return (*(getattr(trial.setup, name) for name in MODEL), trial.setup.gbs)


def _best(rows: Sequence[Row]) -> frozenset[str]:
    """The fastest of each model and batch; rows come fastest first."""
    found: dict[tuple[object, ...], str] = {}
    for row in rows:
        if row.seconds is not None:
            found.setdefault(_work(row.trial), row.trial.id)
    return frozenset(found.values())


def _about(trials: Sequence[Trial]) -> str:
    def most(values: list[str | None]) -> str:
        return ", ".join(value for value, _ in Counter(v for v in values if v).most_common(3))

    setups = [trial.setup for trial in trials]
    sizes = most([setup.size_label for setup in setups])
    said = f"{len(trials)} trials of {most([setup.framework for setup in setups]) or 'unknown software'}"
    said += f" on {most([setup.device for setup in setups]) or 'unknown devices'}"
    return said + (f"; models of {sizes}" if sizes else "")


def _plan(job: Job) -> Plan | None:
    """The same question without the layout; None where no layout fits."""
    return make_plan(Question.of_job(job)) or None
