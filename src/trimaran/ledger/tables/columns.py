"""Which quantity a column holds: the spellings of three dialects of notes, and of files like them."""

import re

# Keys are fields of Setup and Outcome, or one of: memory, freq, async, notes, skip.
SPELLINGS: dict[str, tuple[str, ...]] = {
    "nodes": ("nodes", "nnodes"),
    "devices": ("devices", "gpus", "ngpus"),
    "size_label": ("size", "model size", "params"),
    "layers": ("layers", "nlayers", "lay ers"),
    "hidden": ("hidden", "nhidden", "hidden size"),
    "ffn_hidden": ("ffn",),
    "heads": ("heads", "nheads", "num attention heads", "attention heads", "atten heads"),
    "seq_len": ("seq", "seq len"),
    "zero": ("zero", "zs", "zero stage"),
    "dp": ("dp",),
    "tp": ("tp",),
    "pp": ("pp",),
    "mp": ("mp",),
    "mbs": ("mbs", "micro bs", "micro batch"),
    "gbs": ("gbs", "bs", "global bs", "global batch"),
    "recompute": ("ac",),
    "memory": ("mem", "memory"),
    "seconds": ("sec/it", "s/it", "speed", "seconds"),
    "milliseconds": ("ms/it",),
    "tflops": ("tflops", "tflops /gpu", "tflops/gpu"),
    "freq": ("freq",),
    "async": ("async",),
    "notes": ("notes", "date"),
    "skip": ("est aggr petaflops", "tflops %", "tflops aggreg"),
}
QUANTITY = {spelling: quantity for quantity, spellings in SPELLINGS.items() for spelling in spellings}
RESULTS = {"seconds", "milliseconds", "tflops", "memory"}


def column(header: str) -> str | None:
    """The quantity under a header, or None for a column Trimaran does not know."""
    plain = re.sub(r"[`*.\[\]()]", "", header).replace("-", " ").replace("_", " ")
    return QUANTITY.get(" ".join(plain.lower().split()))


def tensor_parallel_is_mp(names: list[str | None]) -> bool:
    """Fugaku's tables say MP for tensor parallel; others use it for TP x PP, beside a TP column."""
    return "mp" in names and "tp" not in names and "pp" in names
