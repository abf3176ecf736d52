"""Which GEMMs to measure: those of a Model under tensor parallelism, and a fine sweep of one dimension."""

from trimaran.probe.result import GemmShape
from trimaran.spec import Model, presets
from trimaran.spec.cluster import Precision

TENSOR_RANKS = (1, 2, 4, 8)


def default_model(cuda: bool) -> Model:
    """Of a size that such a machine would train."""
    if cuda:
        return presets.model("gpt-1b3")
    return Model.of({"name": "small-gpt", "layers": 8, "hidden": 512, "heads": 8, "vocab": 8192, "seq_len": 256})


def _shape(what: str, rows: int, columns: int, inner: int, precision: Precision) -> GemmShape:
    return GemmShape(what=what, rows=rows, columns=columns, inner=inner, precision=precision)


def layer_shapes(model: Model, tokens: int, tp: int, precision: Precision) -> list[GemmShape]:
    """The forward GEMMs of a layer and of the logits on one tensor rank."""
    kv_width = model.kv_heads * model.head_dim
    up = model.ffn_hidden * (2 if model.mlp == "swiglu" else 1)
    gemms = {
        "qkv": ((model.hidden + 2 * kv_width) // tp, model.hidden),
        "out": (model.hidden, model.hidden // tp),
        "up": (up // tp, model.hidden),
        "down": (model.hidden, model.ffn_hidden // tp),
        "head": (model.vocab_rows(tp) // tp, model.hidden),
    }
    return [_shape(f"{name} tp {tp}", tokens, *sides, precision) for name, sides in gemms.items()]


def model_shapes(model: Model, precision: Precision, quick: bool) -> list[GemmShape]:
    """One sequence on 1 to 8 tensor ranks; on one also half to four sequences, and the weights' gradients."""
    ranks = [tp for tp in TENSOR_RANKS if model.heads % tp == 0 and model.ffn_hidden % tp == 0]
    one = [layer_shapes(model, model.seq_len, tp, precision) for tp in (ranks[::3] if quick else ranks)]
    if quick:
        return [shape for shapes in one for shape in shapes]
    more = [layer_shapes(model, max(1, int(part * model.seq_len)), 1, precision) for part in (0.5, 2, 4)]
    weights = [_shape(f"{s.what} weights", s.columns, s.inner, s.rows, precision) for s in one[0]]
    return [shape for shapes in (*one, *more, weights) for shape in shapes]


def square_shapes(cuda: bool) -> list[GemmShape]:
    """Near the device's peak, in each precision."""
    sides = (4096, 8192) if cuda else (512, 1024)
    precisions: tuple[Precision, ...] = ("fp32", "bf16", "fp16")
    return [_shape("square", side, side, side, precision) for precision in precisions for side in sides]


def sweep_shapes(cuda: bool, precision: Precision, quick: bool) -> list[GemmShape]:
    """Over the columns: tile and wave quantization show as steps, one column beside the grid shows misalignment."""
    rows, inner, first, step, count = (2048, 4096, 1024, 128, 40) if cuda else (256, 256, 64, 32, 16)
    steps = range(0, count, 4 if quick else 1)
    columns = [first + i * step for i in steps] + [first + i * step + 1 for i in steps if i % 8 == 4]
    return [_shape("sweep", rows, wide, inner, precision) for wide in sorted(columns)]
