"""Which quantity a column holds: the spellings of three dialects, and of files like them, to one name each."""

import re

# Names on the right are Setup's and Outcome's fields, or one of: memory, freq, async, notes, skip.
ALIASES: dict[str, str] = {
    "nodes": "nodes",
    "nnodes": "nodes",
    "gpus": "devices",
    "ngpus": "devices",
    "devices": "devices",
    "size": "size_label",
    "model size": "size_label",
    "params": "size_label",
    "nhidden": "hidden",
    "hidden": "hidden",
    "hidden size": "hidden",
    "layers": "layers",
    "nlayers": "layers",
    "lay ers": "layers",
    "ffn": "ffn_hidden",
    "nheads": "heads",
    "heads": "heads",
    "num attention heads": "heads",
    "attention heads": "heads",
    "atten heads": "heads",
    "seq": "seq_len",
    "seq len": "seq_len",
    "zs": "zero",
    "zero": "zero",
    "zero stage": "zero",
    "dp": "dp",
    "tp": "tp",
    "pp": "pp",
    "mp": "mp",
    "mbs": "mbs",
    "micro bs": "mbs",
    "micro batch": "mbs",
    "gbs": "gbs",
    "bs": "gbs",
    "global bs": "gbs",
    "global batch": "gbs",
    "ac": "recompute",
    "mem": "memory",
    "memory": "memory",
    "sec/it": "seconds",
    "s/it": "seconds",
    "speed": "seconds",
    "seconds": "seconds",
    "ms/it": "milliseconds",
    "tflops": "tflops",
    "tflops /gpu": "tflops",
    "tflops/gpu": "tflops",
    "freq": "freq",
    "async": "async",
    "notes": "notes",
    "est aggr petaflops": "skip",
    "tflops %": "skip",
    "tflops aggreg": "skip",
    "date": "notes",
}
RESULTS = {"seconds", "milliseconds", "tflops", "memory"}


def column(header: str) -> str | None:
    """The quantity under a header, or None for a column Trimaran does not know."""
    plain = re.sub(r"[`*.\[\]()]", "", header).replace("-", " ").replace("_", " ")
    return ALIASES.get(" ".join(plain.lower().split()))


def tensor_parallel_is_mp(names: list[str | None]) -> bool:
    """Fugaku's tables say MP for tensor parallel; others use it for TP x PP, beside a TP column."""
    return "mp" in names and "tp" not in names and "pp" in names
