"""What neither Megatron can be told, and what happens instead."""

from collections.abc import Iterator

from trimaran.export.exported import Cannot
from trimaran.export.megatron_flags import evaluation_steps
from trimaran.spec import Job, Validation


def lost_in_megatron(job: Job) -> Iterator[Cannot]:
    saving, validation, recipe = job.saving, job.validation, job.recipe
    if saving.folder is None and saving != type(saving)():
        yield Cannot("saving", "Without a folder there are no checkpoints, so nothing more is said of them.")
    if saving.folder is not None:
        yield Cannot("saving.keep", "It keeps every checkpoint; remove old ones yourself.")
        if saving.every is None:
            yield Cannot("saving.every", f"It needs an interval; {job.steps}, the whole run, is used instead.")
        if saving.minutes is not None:
            yield Cannot("saving.minutes", "It counts iterations, not minutes, between two checkpoints.")
        if saving.folder.startswith("-"):
            yield Cannot("saving.folder", f"A dash would begin a flag; ./{saving.folder} is written instead.")
    if validation.every is None and validation.samples != Validation().samples:
        yield Cannot("validation.samples", "Nothing is evaluated, so no number is written.")
    if validation.every is not None and validation.samples % job.batch.size:
        rounds = evaluation_steps(job)
        why = f"It evaluates whole batches; {rounds} of {job.batch.size} samples are used instead."
        yield Cannot("validation.samples", why)
    if set(recipe.undecayed) != {"norms", "biases"}:
        yield Cannot("recipe.undecayed", "It leaves norms and biases out of weight decay, and nothing else.")
    elif recipe.undecayed != type(recipe)().undecayed:
        yield Cannot("recipe.undecayed", "Norms and biases are left out, whatever their order here.")
    sources = [job.data.source] if isinstance(job.data.source, str) else list(job.data.source)
    if any(path.startswith("-") for path in sources):
        yield Cannot("data.source", "A dash would begin a flag; ./ is written before it.")
