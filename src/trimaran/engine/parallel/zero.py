"""Where the weights live: whole on every replica (ZeRO 0), or sharded over the replicas by FSDP2 (ZeRO 1, 2, 3).

Both give the optimizer the same thing: Slots, this rank's fp32 values with their summed gradients. Gradients are sums,
not means: the loss is divided by the tokens of the whole batch before.
"""

import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from trimaran.cost.tensors import NamedTensor, stage_tensors
from trimaran.engine.model.init_weights import fill
from trimaran.engine.model.transformer import Stage
from trimaran.engine.parallel.gradient_reduction import Reduction
from trimaran.engine.parallel.world import World
from trimaran.spec import Job

# fp8 is inside the layers' products only.
COMPUTE_DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


@dataclass(frozen=True)
class Slot:
    """One parameter as the optimizer sees it: this rank's part."""

    tensor: NamedTensor
    value: nn.Parameter  # fp32
    parameter: Any  # the module's, which it computes with; where sharded, a DTensor
    copy: bool  # the last stage's copy of a tied embedding, which counts for nothing
    sharded: bool  # over the replicas

    @property
    def gradient(self) -> Tensor:
        """Complete after Weights.reduce. In fp32, unless Weights left it as it came."""
        found = self.parameter.grad if self.value.grad is None else self.value.grad
        assert isinstance(found, Tensor), f"{self.tensor.name} has no gradient"
        return found

    def offsets(self, world: World) -> tuple[int, ...]:
        """Where this part begins in the whole tensor."""
        tensor, layout = self.tensor, world.layout
        begins = [0] * len(tensor.shape)
        if self.sharded:  # FSDP2 gives every replica equal rows, the last ones what is left
            begins[0] = -(-tensor.local_shape(layout.tp)[0] // layout.dp) * world.dp_rank
        if tensor.cut is not None:
            begins[tensor.cut] += tensor.shape[tensor.cut] // layout.tp * world.tp_rank
        return tuple(begins)

    def replicas(self, world: World) -> int:
        """Ranks of a stage that hold the same numbers."""
        tensor_copies = world.layout.tp if self.tensor.cut is None else 1
        return tensor_copies * (1 if self.sharded else world.layout.dp)


class Weights(ABC):
    """Of the pipeline stages this rank has: first shapes only (the meta device), then memory, then first values."""

    sharded: bool  # over the replicas
    slots: list[Slot]
    parameters: list[Any]  # of the modules, one a slot; where sharded, DTensors

    def __init__(self, job: Job, world: World) -> None:
        self.job, self.world = job, world
        self.dtype = COMPUTE_DTYPE[job.precision]
        self.stages = range(world.pp_rank, job.layout.stages, job.layout.pp)
        with torch.device("meta"):
            self.modules = [self._module(stage) for stage in self.stages]

    def _module(self, number: int) -> Stage:
        job, count = self.job, self.job.layout.stages
        begin = sum(job.stage_layers[:number])
        layers = range(begin, begin + job.stage_layers[number])
        return Stage(
            job.model,
            self.world.tensor_axis,
            layers,
            first=number == 0,
            last=number == count - 1,
            recompute=job.layout.recompute,
            eight_bits=job.precision == "fp8",
        )

    def materialise(self) -> None:
        """Take the memory; values are whatever was there."""
        for module in self.modules:
            module.to_empty(device=self.world.device)
        self.slots = self._slots()
        self.parameters = [slot.parameter for slot in self.slots]

    def _slots(self) -> list[Slot]:
        found = []
        tied_over_stages = self.job.model.tied_embeddings and self.job.layout.stages > 1
        for stage, module in zip(self.stages, self.modules, strict=True):
            parameters = dict(module.named_parameters())
            for tensor in stage_tensors(self.job.model, self.job.layout, stage):
                parameter = parameters.pop(tensor.name)
                copy = tied_over_stages and tensor.name == "head.weight"
                named = NamedTensor("embedding.word", tensor.shape, tensor.cut) if copy else tensor
                found.append(Slot(named, self._value(parameter), parameter, copy, self.sharded))
            assert not parameters, f"cost.tensors does not know {list(parameters)}"
        return found

    @abstractmethod
    def _value(self, parameter: Any) -> nn.Parameter:
        """The fp32 numbers behind a module's parameter."""

    def initialise(self) -> None:
        """First values, by the job's seed."""
        with torch.no_grad():
            for slot in self.slots:
                fill(slot.value, slot.tensor, slot.offsets(self.world), self.job.model, self.job.seed)
        self.publish()

    def clear(self) -> None:
        """Before the first micro batch of a step."""
        for slot in self.slots:
            slot.value.grad = slot.parameter.grad = None

    @abstractmethod
    def before(self, micro_batch: int, count: int) -> None:
        """Before each micro batch, where there is no pipeline (which has its own order)."""

    def collect(self) -> None:  # noqa: B027 needs nothing
        """After a backward pass that called no hooks, as a zero-bubble schedule's second half does."""

    @abstractmethod
    def reduce(self) -> None:
        """After the last micro batch: every slot's gradient is the sum over the replicas."""

    def publish(self) -> None:  # noqa: B027 gathers the values it shards
        """After the optimizer: the modules compute with the new values."""


class Replicated(Weights):
    """Modules hold the weights in the compute precision; where that is not fp32, Slots are the fp32 originals, and
    gradients add up there. A gradient that nothing is added to needs no fp32 copy, if the optimizer takes it so."""

    sharded = False

    def __init__(self, job: Job, world: World) -> None:
        super().__init__(job, world)
        for module in self.modules:
            module.to(self.dtype)

    def materialise(self) -> None:
        super().materialise()
        for index, parameter in enumerate(self.parameters):
            # Python cannot look into a hook for a circle of owners: one that owned us would keep us for ever.
            parameter.register_post_accumulate_grad_hook(partial(Replicated._arrived, weakref.proxy(self), index))
        self.reduction = Reduction(self.world.group("dp")) if self.world.layout.dp > 1 else None
        self.is_last = False  # of the micro batches: what arrives now is complete
        self.is_only = False

    def _arrived(self, index: int, parameter: Tensor) -> None:
        """A parameter has its gradient of one micro batch."""
        slot = self.slots[index]
        if self.dtype != torch.float32 and not (self.is_only and self.takes_any_precision):
            assert parameter.grad is not None
            if slot.value.grad is None:
                slot.value.grad = parameter.grad.float()
            else:
                slot.value.grad.add_(parameter.grad)
            parameter.grad = None
        if self.is_last and self.reduction:
            self.reduction.add(slot.gradient)

    def collect(self) -> None:
        for index, parameter in enumerate(self.parameters):
            if self.dtype != torch.float32 and parameter.grad is not None:
                self._arrived(index, parameter)

    def before(self, micro_batch: int, count: int) -> None:
        self.is_last, self.is_only = micro_batch == count - 1, count == 1

    @property
    def takes_any_precision(self) -> bool:
        """Whether the optimizer does, and nothing is summed over ranks before it."""
        return one_pass(self.job, self.world) and self.world.size == 1

    def _value(self, parameter: Any) -> nn.Parameter:
        same = parameter.dtype == torch.float32
        return parameter if same else nn.Parameter(torch.empty_like(parameter, dtype=torch.float32))

    def reduce(self) -> None:
        if self.reduction:
            if not self.is_last:  # under a pipeline nothing was sent on the way
                for slot in self.slots:
                    self.reduction.add(slot.gradient)
            self.reduction.finish()
        self.is_last = False

    def publish(self) -> None:
        if self.dtype != torch.float32:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, [slot.value for slot in self.slots])


class Sharded(Weights):
    """FSDP2 around every block and around the stage. ZeRO 1 and 2 keep the gathered weights for the whole step, 3 gives
    them up after each use; 1 reduces gradients after the last micro batch, 2 and 3 after each. Under a pipeline PyTorch
    keeps weights and gradients whole until the last micro batch in any case."""

    sharded = True

    def __init__(self, job: Job, world: World) -> None:
        super().__init__(job, world)
        assert world.mesh is not None
        # Inputs stay as they are: tokens' weights in fp16 would overflow, in bf16 round.
        policy = MixedPrecisionPolicy(self.dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        options: dict[str, Any] = {
            "mesh": world.mesh["dp"],
            "reshard_after_forward": job.layout.zero == 3,
            "mp_policy": policy,
        }
        for module in self.modules:
            for block in module.layers.values():
                fully_shard(block, **options)
            fully_shard(module, **options)
            for part in module.modules():
                if isinstance(part, FSDPModule):
                    part.set_gradient_divide_factor(1.0)  # sums; gloo cannot divide while it reduces
                    part.set_force_sum_reduction_for_comms(True)

    def _value(self, parameter: Any) -> nn.Parameter:
        return nn.Parameter(parameter.detach().to_local())

    def before(self, micro_batch: int, count: int) -> None:
        last, zero = micro_batch == count - 1, self.job.layout.zero
        for module in self.modules:
            assert isinstance(module, FSDPModule)
            module.set_requires_gradient_sync(last or zero >= 2)
            module.set_is_last_backward(last or zero >= 2)  # else FSDP2 keeps its last, largest buffer until then
            module.set_reshard_after_backward(last or zero == 3)

    def reduce(self) -> None:
        for slot, parameter in zip(self.slots, self.parameters, strict=True):
            slot.value.grad = parameter.grad.to_local()


def one_pass(job: Job, world: World) -> bool:
    """Whether the optimizer is engine.kernels.fused_adamw's."""
    return job.optimizer == "fused-adam" and world.device.type == "cuda"


def weights(job: Job, world: World) -> Weights:
    sharded = job.layout.zero > 0 and job.layout.dp > 1
    return Sharded(job, world) if sharded else Replicated(job, world)
