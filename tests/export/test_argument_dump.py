"""Megatron's flags are tabled once: what a launch script passes is what the reader of the run's log reads."""

import pytest
from hypothesis import HealthCheck, assume, given, settings

from tests.export.launchable import launchable
from trimaran.export import megatron_deepspeed, megatron_lm
from trimaran.export.argument_dump import argument_lines, flags_of, names_of, parse_argument
from trimaran.export.flags import FlagTable
from trimaran.export.formats import TARGETS, read_launch_file
from trimaran.export.partial_job import complete_job
from trimaran.export.shell import parse_flags, read_script
from trimaran.ledger.logs.arguments import KNOWN, setup_of
from trimaran.spec import Job, Mistake, Setup

TABLES = {"megatron-deepspeed": megatron_deepspeed.TABLE, "megatron-lm": megatron_lm.TABLE}
# Megatron prints its own name of the optimizer; a script with a batch schedule passes no global batch.
STATED = {"layers", "hidden", "ffn_hidden", "heads", "mlp", "seq_len", "tp", "pp", "mbs", "recompute", "precision"}
many = settings(max_examples=25, suppress_health_check=list(HealthCheck))


def printed(given: dict[str, list[str]], table: FlagTable) -> dict[str, str]:
    """What Megatron's _print_args prints, parsed: every argument, None or False where its flag was not passed."""
    values = dict.fromkeys((flag for entry in table.entries() for flag in entry.flags), "None")
    values |= {
        flag: "True" if not words else words[0] if len(words) == 1 else str(words) for flag, words in given.items()
    }
    if "--disable-bias-linear" in values:
        values["--disable-bias-linear"] = str("--disable-bias-linear" not in given)  # printed as add_bias_linear
    named = {name: value for flag, value in values.items() for name in names_of([flag])}
    lines = [f"[default0]:  {name} {'.' * (48 - len(name))} {value}" for name, value in named.items()]
    return dict(filter(None, map(parse_argument, lines)))


def stated(setup: Setup, names: set[str]) -> dict[str, object]:
    return {name: getattr(setup, name) for name in names}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_the_name_of_every_flag_in_a_dump_leads_back_to_the_flag(table: FlagTable) -> None:
    for entry in table.entries():
        for flag in entry.flags:
            (name,) = names_of([flag])
            assert flags_of({name: "False" if name == "add_bias_linear" else "True"}) == {flag: []}


@pytest.mark.parametrize("target", TABLES)
@many
@given(job=launchable())
def test_the_log_of_an_exported_script_describes_the_job_that_the_script_describes(target: str, job: Job) -> None:
    job = job.replace(data={"source": "synthetic"}, saving={})  # a dump does not quote paths
    try:
        script = TARGETS[target](job).files["train.sh"]
    except Mistake:
        assume(False)
    words = max(read_script(script).commands, key=len)
    given = parse_flags(words[next(i for i, word in enumerate(words) if word.endswith(".py")) + 1 :])
    arguments = printed(given, TABLES[target])
    assert flags_of(arguments) == given
    known = {name: value for name, value in arguments.items() if name in KNOWN}
    partial = read_launch_file(script, "train.sh")
    assert partial is not None
    described = complete_job(partial, job.cluster, None, job.name)
    assert stated(setup_of(known), STATED) == stated(Setup.of_job(described), STATED)


@many
@given(job=launchable())
def test_the_dump_of_our_own_trainer_describes_its_job(job: Job) -> None:
    """All that a Setup has, but the machine; the vocabulary as padded."""
    arguments = dict(filter(None, map(parse_argument, argument_lines(job))))
    assert arguments.keys() <= KNOWN
    setup = setup_of(arguments)
    names = STATED | {"kv_heads", "dp", "virtual_stages", "zero", "gbs", "devices", "sequence_parallel", "optimizer"}
    assert stated(setup, names) == stated(Setup.of_job(job), names)
    assert setup.vocab == job.model.vocab_rows(job.layout.tp)
