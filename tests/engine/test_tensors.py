"""spec.tensors lists the engine's parameters exactly, and cost.parameters counts as many by formula."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spec.strategies import models
from trimaran.cost.parameters import stage_parameters
from trimaran.engine.model.transformer import Stage
from trimaran.engine.parallel.tensor_parallel import TensorAxis
from trimaran.spec import Layout, Model
from trimaran.spec.tensors import stage_tensors


@st.composite
def cut_models(draw: st.DrawFn) -> tuple[Model, Layout]:
    """Any model on any number of tensor ranks and stages, also virtual ones and stages without layers."""
    tp, pp, virtual = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 4)), draw(st.integers(1, 2))
    sizes = draw(st.lists(st.integers(0, 3), min_size=pp * virtual, max_size=pp * virtual).filter(any))
    model = draw(models(tp)).replace(layers=sum(sizes))
    if draw(st.booleans()):
        model = model.replace(padded_vocab=tp * (model.vocab + draw(st.integers(0, 100))))
    return model, Layout(tp=tp, pp=pp, virtual_stages=virtual, split=tuple(sizes))


@settings(max_examples=100)
@given(cut_models(), st.integers(0, 3))
def test_names_and_shapes_are_those_of_the_engines_modules(case: tuple[Model, Layout], some_rank: int) -> None:
    model, layout = case
    axis, begin = TensorAxis(layout.tp, some_rank % layout.tp), 0
    for stage, count in enumerate(layout.split):
        layers = range(begin, begin := begin + count)
        with torch.device("meta"):
            module = Stage(model, axis, layers, first=stage == 0, last=stage == layout.stages - 1)
        expected = [(name, tuple(value.shape)) for name, value in module.named_parameters()]
        listed = stage_tensors(model, layout, stage)
        assert [(tensor.name, tensor.local_shape(layout.tp)) for tensor in listed] == expected


@settings(max_examples=100)
@given(cut_models())
def test_their_number_of_elements_is_that_of_the_formulas(case: tuple[Model, Layout]) -> None:
    model, layout = case
    listed = [stage_tensors(model, layout, stage) for stage in range(layout.stages)]
    sums = [sum(math.prod(tensor.local_shape(layout.tp)) for tensor in tensors) for tensors in listed]
    assert sums == stage_parameters(model, layout).tolist()
