"""trimaran presets: what commands accept by name, without a file."""

from typing import Annotated

import typer

from trimaran.cli.show import JsonOption, print_json, print_table
from trimaran.cost.parameters import total_parameters
from trimaran.spec import Mistake
from trimaran.spec import presets as known
from trimaran.spec.documents import parse_yaml
from trimaran.spec.mistake import did_you_mean


def presets(
    name: Annotated[str, typer.Argument(help="Show this preset as YAML, to copy and edit.")] = "",
    json: JsonOption = False,
) -> None:
    """List the models, clusters, trainers, jobs and sweeps that commands accept by name, or show one as YAML.

    Example: `trimaran presets bloom-176b > my-model.yaml`
    """
    if name:
        _show(name, json)
        return
    if json:
        print_json({kind: known.names(kind) for kind in (*known.KINDS, known.JOBS, known.SWEEPS)})
        return
    models = sorted((known.model(n) for n in known.names("models")), key=lambda m: (total_parameters(m), m.name))
    fields = ("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab", "seq_len")
    print_table(
        "Models",
        ("name", "parameters", "layers", "hidden", "ffn", "heads", "kv", "vocab", "seq"),
        [(m.name, f"{total_parameters(m) / 1e9:.2f}B", *(str(getattr(m, field)) for field in fields)) for m in models],
    )
    clusters = [known.cluster(n) for n in known.names("clusters") if n != known.HERE]
    print_table(
        "Clusters",
        ("name", "nodes", "× devices", "device", "memory GiB", "peak TFLOP/s, 16 bit", "inside GB/s", "between GB/s"),
        [
            (
                c.name,
                str(c.nodes),
                str(c.devices_per_node),
                c.device.name,
                f"{c.device.memory_gib:g}",
                f"{max(v for k, v in c.device.peak_tflops.items() if k != 'fp8'):g}",
                f"{c.inside.gb_per_s:g}",
                f"{c.between.gb_per_s:g}",
            )
            for c in clusters
        ]
        + [(known.HERE, "1", "", "this machine, detected when used", "", "", "", "")],
        left=(0, 3),
    )
    trainers = [known.trainer(n) for n in known.names("trainers")]
    print_table(
        "Trainers",
        ("name", "attention", "schedules", "ZeRO with pipeline", "prints TFLOPs by"),
        [
            (t.name, t.attention, ", ".join(t.schedules), ", ".join(map(str, t.zero_stages_with_pipeline)), t.prints)
            for t in trainers
        ],
        left=(0, 1, 2, 3, 4),
    )
    for title, kind in (("Jobs", known.JOBS), ("Sweeps", known.SWEEPS)):
        described = [(n, known.description(kind, n)) for n in known.names(kind)]
        print_table(title, ("name", "purpose"), described, left=(0, 1))


def _show(name: str, json: bool) -> None:
    kinds = (*known.KINDS, known.JOBS, known.SWEEPS)
    kind = next((kind for kind in kinds if name in known.names(kind)), None)
    if kind is None:
        every = [n for kind in kinds for n in known.names(kind)]
        raise Mistake(f"There is no preset {name!r}.{did_you_mean(name, every)} `trimaran presets` lists all.")
    # Jobs and sweeps as their short files, in which `here` stays `here` wherever they are copied to.
    text = known.preset(kind, name).to_yaml() if kind in known.KINDS else known.text(kind, name)
    print_json(parse_yaml(text, f"The preset {name}")) if json else print(text, end="")
