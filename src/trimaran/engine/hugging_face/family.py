"""Family: one kind of model in `transformers`, described once: its tensors beside ours, its config beside our Model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trimaran.engine.checkpoint.reader import full_shapes
from trimaran.spec import Mistake, Model


@dataclass(frozen=True)
class Conversion:
    """How a tensor of ours is stored in theirs: two functions, each the inverse of the other.

    They only move elements, so what holds for weights holds for gradients. Each works on a matrix and on its bias.
    """

    from_hf: Callable[[Sequence[Tensor]], Tensor]
    to_hf: Callable[[Tensor], Sequence[Tensor]]


def same(model: Model) -> Conversion:
    return Conversion(lambda parts: parts[0], lambda whole: [whole])


def transposed(model: Model) -> Conversion:
    return Conversion(lambda parts: parts[0].t(), lambda whole: [whole.t()])


def gate_up(model: Model) -> Conversion:
    """Theirs are two matrices, gate and up; in ours their rows alternate."""
    return Conversion(
        lambda parts: torch.stack(tuple(parts), dim=1).flatten(0, 1),
        lambda whole: whole.unflatten(0, (-1, 2)).unbind(1),
    )


def separate_qkv(model: Model) -> Conversion:
    """Theirs are three matrices; ours has, for each key/value head, its queries, then the key, then the value."""
    dim, groups = model.head_dim, model.kv_heads
    sizes = [model.heads // groups * dim, dim, dim]
    return Conversion(
        lambda parts: torch.cat([part.unflatten(0, (groups, -1)) for part in parts], dim=1).flatten(0, 1),
        lambda whole: [part.flatten(0, 1) for part in whole.unflatten(0, (groups, -1)).split(sizes, dim=1)],
    )


def fused_qkv(model: Model) -> Conversion:
    """Theirs is one transposed matrix: all queries, then all keys, then all values."""
    separate = separate_qkv(model)
    return Conversion(
        lambda parts: separate.from_hf(parts[0].t().chunk(3)),
        lambda whole: [torch.cat(list(separate.to_hf(whole))).t()],
    )


ModuleMapping = tuple[tuple[str, ...], Callable[[Model], Conversion]]
Derived = Mapping[str, Callable[[Model], Any]]


def renamed(name: str) -> ModuleMapping:
    return (name,), same


@dataclass(frozen=True)
class TensorMapping:
    """A tensor of ours, and those of theirs that hold its elements."""

    name: str
    hf_names: tuple[str, ...]
    conversion: Conversion


@dataclass(frozen=True)
class Family:
    name: str
    model_type: str
    architecture: str
    base: str  # prefix of tensor names; files of the base model leave it out
    layers: str  # prefix of the layers
    modules: Mapping[str, ModuleMapping]  # ours (in a layer: without its number) and theirs
    always: Mapping[str, Any]  # fields of Model that make it this family
    follows: Derived  # fields of Model that are determined by others
    keys: Mapping[str, tuple[str, ...]]  # field of Model: the config's key, and older names of it
    absent: Mapping[str, Any]  # default of such a field where the config has no key; None: the default of Model
    derived: Derived = field(default_factory=dict)  # further keys of the config
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # key: what is written, what else is accepted

    def mappings(self, model: Model) -> list[TensorMapping]:
        """Of every tensor, in our order."""
        return [self._mapping(name, model) for name in full_shapes(model)]

    def _mapping(self, name: str, model: Model) -> TensorMapping:
        module, part = name.rsplit(".", 1) if name.endswith((".weight", ".bias")) else (name, "weight")
        prefix = ""
        if module.startswith("layers."):
            _, number, module = module.split(".", 2)
            prefix = f"{self.layers}.{number}."
        hf_modules, conversion = self.modules[module]
        return TensorMapping(name, tuple(f"{prefix}{each}.{part}" for each in hf_modules), conversion(model))

    def difference(self, model: Model) -> str:
        """The first field with another value in this family, in a few words, or ''."""
        expected = {**self.always, **{name: derive(model) for name, derive in self.follows.items()}}
        for name, value in expected.items():
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
        """The Model of a config, or a Mistake that names the first key with a value our engine does not support."""
        fields = {key: self._field(key, config, what) for key in self.keys}
        model = Model.of({"name": name, **self.always, **fields}, what)
        accepted = {
            **self.fixed,
            **{key: (derive(model), None) for key, derive in self.derived.items()},
            "quantization_config": (None,),
        }
        for key, values in accepted.items():
            if config.get(key) not in values:
                raise Mistake(f"{what} has {key} = {config.get(key)}, but Trimaran's {self.name} has {values[0]}.")
        return model

    def _field(self, name: str, config: Mapping[str, Any], what: str) -> Any:
        for key in self.keys[name]:
            outer, _, inner = key.rpartition(".")
            section = config.get(outer) if outer else config
            if isinstance(section, Mapping) and section.get(inner) is not None:
                return section[inner]
        if name not in self.absent:
            raise Mistake(f"{what} has no {self.keys[name][0]}, so the shape of this {self.name} is not known.")
        return self.absent[name]
