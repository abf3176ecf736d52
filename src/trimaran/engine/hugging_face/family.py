"""Family: one kind of model in `transformers`, described once: its tensors beside ours, its config beside our Model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from trimaran.engine.checkpoint.reader import whole_shapes
from trimaran.engine.hugging_face.moves import Move, same
from trimaran.spec import Mistake, Model

Modules = Mapping[str, tuple[tuple[str, ...], Callable[[Model], Move]]]
Derived = Mapping[str, Callable[[Model], Any]]


@dataclass(frozen=True)
class Pair:
    """A tensor of ours, and where its numbers are in theirs."""

    ours: str
    theirs: tuple[str, ...]
    move: Move


def alike(name: str) -> tuple[tuple[str, ...], Callable[[Model], Move]]:
    return (name,), same


@dataclass(frozen=True)
class Family:
    name: str
    model_type: str
    architecture: str
    base: str  # what names begin with; files of the bare model leave it out
    layers: str  # where the layers are
    modules: Modules  # ours (in a layer: without its number) and theirs
    always: Mapping[str, Any]  # fields of Model that make it this family
    follows: Derived  # fields of Model that it does not choose
    keys: Mapping[str, tuple[str, ...]]  # field of Model: the config's key, and older names of it
    absent: Mapping[str, Any]  # what such a field is where the config is silent; None: what Model makes of it
    derived: Derived = field(default_factory=dict)  # further keys of the config
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # key: what is written, what else is accepted

    def pairs(self, model: Model) -> list[Pair]:
        """Of every tensor, in our order."""
        return [self._pair(name, model) for name in whole_shapes(model)]

    def _pair(self, name: str, model: Model) -> Pair:
        module, part = name.rsplit(".", 1) if name.endswith((".weight", ".bias")) else (name, "weight")
        where = ""
        if module.startswith("layers."):
            _, number, module = module.split(".", 2)
            where = f"{self.layers}.{number}."
        theirs, move = self.modules[module]
        return Pair(name, tuple(f"{where}{each}.{part}" for each in theirs), move(model))

    def misfit(self, model: Model) -> str:
        """The first field that this family has otherwise, in a few words, or ''."""
        wanted = {**self.always, **{name: derive(model) for name, derive in self.follows.items()}}
        for name, value in wanted.items():
            if getattr(model, name) != value:
                return f"{name} is {getattr(model, name)}, but in {self.name} it is {value}"
        return ""

    def config(self, model: Model) -> dict[str, Any]:
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            **{keys[0]: getattr(model, name) for name, keys in self.keys.items()},
            **{key: derive(model) for key, derive in self.derived.items()},
            **{key: values[0] for key, values in self.fixed.items()},
        }

    def model(self, config: Mapping[str, Any], name: str, what: str) -> Model:
        """The Model of a config, or a Mistake that names the first key which our engine has otherwise."""
        fields = {key: self._field(key, config, what) for key in self.keys}
        made = Model.of({"name": name, **self.always, **fields}, what)
        accepted = {
            **self.fixed,
            **{key: (derive(made), None) for key, derive in self.derived.items()},
            "quantization_config": (None,),
        }
        for key, values in accepted.items():
            if config.get(key) not in values:
                raise Mistake(f"{what} has {key} = {config.get(key)}, but Trimaran's {self.name} has {values[0]}.")
        return made

    def _field(self, name: str, config: Mapping[str, Any], what: str) -> Any:
        for key in self.keys[name]:
            outer, _, inner = key.rpartition(".")
            inside = config.get(outer) if outer else config
            if isinstance(inside, Mapping) and inside.get(inner) is not None:
                return inside[inner]
        if name not in self.absent:
            raise Mistake(f"{what} does not say {self.keys[name][0]}, so the {self.name}'s shape is not known.")
        return self.absent[name]


def to_theirs(family: Family, model: Model, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor
        for pair in family.pairs(model)
        for name, tensor in zip(pair.theirs, pair.move.theirs(ours[pair.ours]), strict=True)
    }


def to_ours(family: Family, model: Model, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without the padding of the vocabulary."""
    return {pair.ours: pair.move.ours([theirs[name] for name in pair.theirs]) for pair in family.pairs(model)}
