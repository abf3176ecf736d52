"""trimaran presets: what can be named without writing a file."""

from typing import Annotated

import typer


def presets(
    name: Annotated[str, typer.Argument(help="Show this preset as YAML, to copy and change.")] = "",
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the models, clusters, trainers, jobs and sweeps that can be named in any command, or show one as YAML.

    Example: `trimaran presets bloom-176b > my-model.yaml`
    """
    from trimaran.spec import presets as known

    if name:
        _show(name, json)
        return
    from trimaran.cli.show import print_json, print_table
    from trimaran.cost.parameters import total_parameters

    if json:
        print_json({kind: known.names(kind) for kind in (*known.KINDS, known.JOBS, known.SWEEPS)})
        return
    rows = []
    for model_name in known.names("models"):
        model = known.model(model_name)
        shape = (model.layers, model.hidden, model.ffn_hidden, model.heads, model.kv_heads, model.vocab, model.seq_len)
        rows.append((total_parameters(model), model_name, shape))
    print_table(
        "Models",
        ("name", "parameters", "layers", "hidden", "ffn", "heads", "kv", "vocab", "seq"),
        [(n, f"{count / 1e9:.2f}B", *(str(value) for value in shape)) for count, n, shape in sorted(rows)],
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
        print_table(title, ("name", "what for"), described, left=(0, 1))


def _show(name: str, json: bool) -> None:
    from trimaran.spec import Mistake
    from trimaran.spec import presets as known
    from trimaran.spec.mistake import did_you_mean

    kinds = (*known.KINDS, known.JOBS, known.SWEEPS)
    kind = next((kind for kind in kinds if name in known.names(kind)), None)
    if kind is None:
        every = [n for kind in kinds for n in known.names(kind)]
        raise Mistake(f"There is no preset {name!r}.{did_you_mean(name, every)} `trimaran presets` lists all.")
    if kind not in known.KINDS:
        _show_file(kind, name, json)
        return
    noun = known.preset(kind, name)
    print(noun.model_dump_json(indent=2) if json else noun.to_yaml(), end="" if not json else "\n")


def _show_file(kind: str, name: str, json: bool) -> None:
    """The file itself: it stays short, and means `here` wherever it is copied to."""
    import yaml

    from trimaran.cli.show import print_json
    from trimaran.spec import presets as known

    text = known.text(kind, name)
    if json:
        print_json(yaml.safe_load(text))
    else:
        print(text, end="")
