"""Megatron-LM's flags for the layers of each pipeline stage."""

import re

from trimaran.export.flags import Fields, Given, Line, number
from trimaran.spec import Job, Mistake
from trimaran.spec.layout import weighted_layers


class PipelineSplitFlags:
    """An even split, one that counts embedding and loss as layers, or the layers of each stage written out."""

    flags = (
        "--num-virtual-stages-per-pipeline-rank",
        "--num-layers-per-virtual-pipeline-stage",
        "--account-for-embedding-in-pipeline-split",
        "--account-for-loss-in-pipeline-split",
        "--pipeline-model-parallel-layout",
        "--decoder-first-pipeline-num-layers",
        "--decoder-last-pipeline-num-layers",
    )

    def write(self, job: Job) -> list[Line]:
        layout = job.layout
        if layout.pp == 1:
            return []
        if layout.split == "weighted" and layout.virtual_stages == 1 and (job.model.layers + 2) % layout.pp == 0:
            return [["--account-for-embedding-in-pipeline-split"], ["--account-for-loss-in-pipeline-split"]]
        if layout.split != "even":
            return [["--pipeline-model-parallel-layout", _format_stages(job.stage_layers)]]
        if layout.virtual_stages > 1:
            return [["--num-virtual-stages-per-pipeline-rank", str(layout.virtual_stages)]]
        return []

    def read(self, given: Given) -> Fields:
        pp = number(given, "--pipeline-model-parallel-size", int, 1)
        layers = number(given, "--num-layers", int, 0)
        fields: Fields = {}
        if "--pipeline-model-parallel-layout" in given:
            split = _parse_stages("".join(given["--pipeline-model-parallel-layout"]))
            fields["layout.split"] = "weighted" if split == weighted_layers(layers, len(split)) else split
            virtual = max(1, len(split) // pp)
        else:
            first, last = (number(given, flag, int, -1) for flag in self.flags[-2:])
            if pp > 1 and (first >= 0 or last >= 0):
                fields["layout.split"] = _split_by_ends(layers, pp, first, last)
            elif self.flags[2] in given and self.flags[3] in given:
                fields["layout.split"] = "weighted"
            virtual = number(given, "--num-virtual-stages-per-pipeline-rank", int, 1)
            chunk = number(given, "--num-layers-per-virtual-pipeline-stage", int, 0)
            virtual = layers // pp // chunk if chunk else virtual
        if virtual > 1:
            fields |= {"layout.virtual_stages": virtual, "layout.schedule": "interleaved"}
        return fields


def _format_stages(layers: tuple[int, ...]) -> str:
    stages = [f"t*{count}" if count else "" for count in layers]
    stages[0], stages[-1] = f"E{stages[0]}", f"{stages[-1]}L"
    return "|".join(stages)


def _parse_stages(text: str) -> tuple[int, ...]:
    """Layers of every stage: 'E', 'L' and commas do not count, (…)*3 and t*3 repeat."""
    text = text.replace(",", "").replace(" ", "")
    while found := re.search(r"\(([^()]*)\)(?:\*(\d+))?|([tmEL])\*(\d+)", text):
        inside = (found[1] or "") * int(found[2] or 1) if found[1] is not None else found[3] * int(found[4])
        text = text[: found.start()] + inside + text[found.end() :]
    return tuple(stage.count("t") for stage in text.split("|"))


def _split_by_ends(layers: int, pp: int, first: int, last: int) -> tuple[int, ...]:
    """The first or last stage has so many layers (-1: not given); the others share the rest equally."""
    fixed = (first >= 0) + (last >= 0)
    left = layers - max(first, 0) - max(last, 0)
    if pp <= fixed or left % (pp - fixed):
        raise Mistake(f"The stages between the first and the last cannot share {left} layers equally.")
    return (*([first] if first >= 0 else []), *[left // (pp - fixed)] * (pp - fixed), *([last] if last >= 0 else []))
