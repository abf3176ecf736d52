"""Which shape of a given size trains fastest: layers x hidden x heads, each in its best layout, with the reasons."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor

from trimaran.cost.columns import Columns
from trimaran.cost.gemm import wave_efficiency
from trimaran.cost.parameters import layer_parameters, total_parameters
from trimaran.cost.time import fused_softmax
from trimaran.planner.candidates import divisors
from trimaran.planner.plan import RankedLayout, ranked_layouts
from trimaran.planner.question import Question
from trimaran.planner.ranking import search
from trimaran.spec import Mistake, Model

TOLERANCE = 0.05  # of the target size
ASPECTS = (64, 256)  # hidden over layers: SC21's 39B has 170, GPT-3 128, BLOOM 205
HEAD_DIMS = (64, 256)
DEPTHS, HEAD_COUNTS = 3, 2  # tried for each width
USUAL_HEAD = 128
MOST_LAYERS = 1024
SPARE = 2  # shapes costed with every layout beyond those shown, because the first ranking is approximate

# A first ranking of the shapes costs only layouts in common use, in a hundredth of the time.
COMMON = {
    "schedule": frozenset(["1f1b"]),
    "mbs": frozenset([1, 2, 4, 8]),
    "zero": frozenset([1, 2]),
    "tp": frozenset([1, 2, 4, 8]),
}


@dataclass(frozen=True)
class ShapeReason:
    """One reason why a shape is fast or slow on this device; `good` means that nothing is lost."""

    kind: str
    text: str
    good: bool


@dataclass(frozen=True)
class RankedShape:
    best: RankedLayout  # its question has this shape as its model
    parameters: int
    reasons: tuple[ShapeReason, ...]

    @property
    def model(self) -> Model:
        return self.best.question.model

    @property
    def seconds_per_billion(self) -> float:
        """Seconds per iteration and 10^9 parameters: what the ranking is by."""
        return self.best.seconds / self.parameters * 1e9


def shapes_of_size(
    target: float,
    vocab: int,
    seq_len: int,
    hiddens: Sequence[int] = (),
    heads: Sequence[int] = (),
    layers: Sequence[int] = (),
) -> list[Model]:
    """Shapes within 5 % of a size. Widths given are taken as they are; else steps of 256 (128 below 4096)."""
    found = []
    for hidden in hiddens or list(_widths(target)):
        for count in heads or _head_counts(hidden):
            if hidden % count:
                continue
            one = Model.of({"layers": 1, "hidden": hidden, "heads": count, "vocab": vocab, "seq_len": seq_len})
            for depth in layers or _depths(one, target):
                model = one.replace(layers=depth, name=f"{hidden}x{depth}, {count} heads")
                if abs(total_parameters(model) / target - 1) <= TOLERANCE:
                    found.append(model)
    if not found:
        restricted = hiddens or heads or layers
        remedy = "allow other values of hidden, heads or layers" if restricted else "a size from 10M on does"
        size = f"{TOLERANCE:.0%} of {target / 1e9:g}B parameters"
        raise Mistake(f"No shape comes within {size} with a vocabulary of {vocab}; {remedy}.")
    return found


def rank_shapes(
    question: Question, shapes: Sequence[Model], top: int, every_head_count: bool = False
) -> list[RankedShape]:
    """The `top` shapes by seconds per iteration and parameter.

    All are ranked with common layouts, then the best with every layout. Of one width and depth only the best number of
    heads is kept, unless every one is wanted; where it makes no difference, the one with the usual head dimension.
    """
    first: dict[tuple[int, ...], tuple[float, int, Model]] = {}
    for model in shapes:
        found = search(question.replace(model=model, fixed={**COMMON, **question.fixed}), keep=1)
        if len(found):
            key = (model.hidden, model.layers, model.heads if every_head_count else 0)
            each = round(float(found.seconds[0]) / total_parameters(model) * 1e9, 6)
            entry = (each, abs(model.head_dim - USUAL_HEAD), model)
            first[key] = min(first.get(key, entry), entry, key=lambda entry: entry[:2])
    ranked = []
    for _, _, model in sorted(first.values(), key=lambda entry: entry[:2])[: top + SPARE]:
        with_shape = question.replace(model=model)
        found = search(with_shape, keep=1).take(slice(1))
        (best,) = ranked_layouts(with_shape, found)
        ranked.append(RankedShape(best, total_parameters(model), _reasons(best, found.rows)))
    if not ranked:
        raise Mistake(
            f"None of {len(shapes)} shapes trains on {question.cluster.nodes} nodes of {question.cluster.name} with a"
            f" batch of {question.batch.size}; `trimaran fit --on {question.cluster.name}` says what does."
        )
    return sorted(ranked, key=lambda shape: shape.seconds_per_billion)[:top]


def _reasons(best: RankedLayout, rows: Columns) -> tuple[ShapeReason, ...]:
    """Tiles, waves, head dimension, softmax and vocabulary of a shape in its best layout, which is the row."""
    question, layout = best.question, best.layout
    model = question.model
    on_gpu = (
        _tile("hidden", model.hidden, layout.tp),
        _tile("ffn", model.ffn_hidden, layout.tp),
        _wave(question, layout.micro_batch, layout.tp),
    )
    reasons = (_head(model), _softmax(question, rows), _vocabulary(model, layout.tp))
    return (*on_gpu, *reasons) if question.cluster.device.is_gpu else reasons


def _tile(name: str, width: int, tp: int) -> ShapeReason:
    own = width / tp
    good = own % 64 == 0
    multiple = 128 if own % 128 == 0 else 64
    why = f"= {own / multiple:.0f} x {multiple}" if good else f"is not a multiple of 64 ({own / 64:.2f} x 64)"
    return ShapeReason("tile", f"{name} {width}/{tp} = {own:g} {why}", good)


def _wave(question: Question, mbs: int, tp: int) -> ShapeReason:
    """Of the MLP's first GEMM, the largest of a layer."""
    model, device = question.model, question.cluster.device
    full = float(wave_efficiency(device, mbs * model.seq_len, model.ffn_hidden / tp))
    return ShapeReason("wave", f"waves of tiles fill {full:.0%} of {device.units} units in the MLP", full >= 0.9)


def _head(model: Model) -> ShapeReason:
    said, good = f"head dimension {model.head_dim}", model.head_dim % 8 == 0
    if good:
        return ShapeReason("head", f"{said} = {model.head_dim // 8} x 8", good)
    return ShapeReason("head", f"{said} is not a multiple of 8: no fast path of the tensor cores in attention", good)


def _softmax(question: Question, rows: Columns) -> ShapeReason:
    kind = question.trainer.attention
    if kind == "flash":
        return ShapeReason("softmax", "flash attention, no softmax kernel to satisfy", True)
    each = int(rows.heads[0] / rows.tp[0] * rows.mbs[0])
    if kind == "naive":
        return ShapeReason("softmax", "softmax is not fused", False)
    if bool(fused_softmax(rows)[0]):
        return ShapeReason("softmax", f"fused softmax applies (heads/tp x mbs = {each}, a multiple of 4)", True)
    why = f"heads/tp x mbs = {each} is not a multiple of 4" if each % 4 else f"sequence {question.model.seq_len}"
    return ShapeReason("softmax", f"no fused softmax: {why}", False)


def _vocabulary(model: Model, tp: int) -> ShapeReason:
    padded = model.vocab_rows(tp)
    return ShapeReason("vocabulary", f"vocabulary {model.vocab} padded to {padded} = {padded // tp} a rank", True)


def _widths(target: float) -> Iterator[int]:
    """12 l h^2 parameters at an aspect h/l of 64 to 256."""
    low, high = ((target * aspect / 12) ** (1 / 3) for aspect in ASPECTS)
    step = 256 if low >= 4096 else 128 if low >= 1024 else 64
    yield from range(ceil(low / step) * step, floor(high / step) * step + 1, step)


def _head_counts(hidden: int) -> list[int]:
    """The counts nearest to the usual dimension, of those that eight tensor ranks can share where some exist."""
    possible = [count for count in divisors(hidden) if HEAD_DIMS[0] <= hidden / count <= HEAD_DIMS[1]] or [1]
    shared = [count for count in possible if count % 8 == 0] or possible
    return sorted(shared, key=lambda count: (hidden / count % 8 > 0, abs(hidden / count - USUAL_HEAD)))[:HEAD_COUNTS]


def _depths(one: Model, target: float) -> list[int]:
    """Even depths near the target where some exist: pipelines divide them, or them and embedding and head."""
    layer = int(layer_parameters(one))
    rest = total_parameters(one) - layer
    low, high = ((target * (1 + side * TOLERANCE) - rest) / layer for side in (-1, 1))
    fitting = range(max(1, ceil(low)), min(floor(high), MOST_LAYERS) + 1)
    good = [depth for depth in fitting if depth % 2 == 0] or list(fitting)
    middle = (target - rest) / layer
    return sorted(good, key=lambda depth: abs(depth - middle))[:DEPTHS]
