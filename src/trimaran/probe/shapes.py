"""Which matrix products to measure: those of a Model under tensor parallelism, and a fine sweep of one side."""

from dataclasses import dataclass

from trimaran.spec import Model, presets
from trimaran.spec.cluster import Precision

TENSOR_RANKS = (1, 2, 4, 8)


def usual_model(cuda: bool) -> Model:
    """Whose shapes are measured where none is named: what the machine would train."""
    if cuda:
        return presets.model("gpt-1b3")
    return Model.of({"name": "small-gpt", "layers": 8, "hidden": 512, "heads": 8, "vocab": 8192, "seq_len": 256})


@dataclass(frozen=True)
class Shape:
    what: str
    rows: int
    columns: int
    inner: int
    precision: Precision

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self.columns * self.inner


def layer_shapes(model: Model, tokens: int, tp: int, precision: Precision) -> list[Shape]:
    """The products of a layer and of the logits on one tensor rank, forward."""
    kv_width = model.kv_heads * model.head_dim
    up = model.ffn_hidden * (2 if model.mlp == "swiglu" else 1)
    products = {
        "qkv": ((model.hidden + 2 * kv_width) // tp, model.hidden),
        "out": (model.hidden, model.hidden // tp),
        "up": (up // tp, model.hidden),
        "down": (model.hidden, model.ffn_hidden // tp),
        "head": (model.vocab_rows(tp) // tp, model.hidden),
    }
    return [Shape(f"{name} tp {tp}", tokens, *sides, precision) for name, sides in products.items()]


def model_shapes(model: Model, precision: Precision, quick: bool) -> list[Shape]:
    """One sequence on 1 to 8 tensor ranks; on one of them also a half to four, and the gradients of the weights."""
    ranks = [tp for tp in TENSOR_RANKS if model.heads % tp == 0 and model.ffn_hidden % tp == 0]
    one = [layer_shapes(model, model.seq_len, tp, precision) for tp in (ranks[::3] if quick else ranks)]
    if quick:
        return [shape for shapes in one for shape in shapes]
    more = [layer_shapes(model, max(1, int(part * model.seq_len)), 1, precision) for part in (0.5, 2, 4)]
    weights = [Shape(f"{s.what} weights", s.columns, s.inner, s.rows, precision) for s in one[0]]
    return [shape for shapes in (*one, *more, weights) for shape in shapes]


def square_shapes(cuda: bool) -> list[Shape]:
    """What a device can at best, in each number format."""
    sides = (4096, 8192) if cuda else (512, 1024)
    precisions: tuple[Precision, ...] = ("fp32", "bf16", "fp16")
    return [Shape("square", side, side, side, precision) for precision in precisions for side in sides]


def sweep_shapes(cuda: bool, precision: Precision, quick: bool) -> list[Shape]:
    """More and more columns: whole tiles and waves are steps. One column beside the grid shows misalignment."""
    rows, inner, first, step, count = (2048, 4096, 1024, 128, 40) if cuda else (256, 256, 64, 32, 16)
    places = range(0, count, 4 if quick else 1)
    columns = [first + i * step for i in places] + [first + i * step + 1 for i in places if i % 8 == 4]
    return [Shape("sweep", rows, wide, inner, precision) for wide in sorted(columns)]
