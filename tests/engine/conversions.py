"""All tensors of a model in Hugging Face's names and order of elements, and back."""

from collections.abc import Mapping

from torch import Tensor

from trimaran.engine.hugging_face.family import Family
from trimaran.spec import Model


def to_hf(family: Family, model: Model, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor
        for mapping in family.mappings(model)
        for name, tensor in zip(mapping.hf_names, mapping.conversion.to_hf(tensors[mapping.name]), strict=True)
    }


def from_hf(family: Family, model: Model, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without the padding of the vocabulary."""
    return {
        mapping.name: mapping.conversion.from_hf([tensors[name] for name in mapping.hf_names])
        for mapping in family.mappings(model)
    }
