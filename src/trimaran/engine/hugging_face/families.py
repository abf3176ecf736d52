"""Which family a Model or a config belongs to."""

from collections.abc import Mapping
from typing import Any

from trimaran.engine.hugging_face.bloom import BLOOM
from trimaran.engine.hugging_face.family import Family
from trimaran.engine.hugging_face.gpt2 import GPT2
from trimaran.engine.hugging_face.llama import LLAMA
from trimaran.spec import Mistake, Model

FAMILIES = (GPT2, BLOOM, LLAMA)
BY_POSITION = {family.always["position"]: family for family in FAMILIES}
BY_TYPE = {family.model_type: family for family in FAMILIES}


def family_of(model: Model) -> Family:
    """The kind of positions decides; everything else must fit."""
    family = BY_POSITION[model.position]
    other = family.misfit(model)
    if other:
        raise Mistake(
            f"transformers has no model like {model.name}: with {model.position} positions it would be {family.name},"
            f" but its {other}. What has a place there: learned positions as GPT-2, alibi as BLOOM, rotary as Llama."
        )
    return family


def family_of_config(config: Mapping[str, Any], what: str) -> Family:
    family = BY_TYPE.get(str(config.get("model_type")))
    if family is None:
        raise Mistake(
            f"{what} is of model_type {config.get('model_type')!r}, but only {', '.join(BY_TYPE)} have a counterpart"
            " in Trimaran."
        )
    return family
