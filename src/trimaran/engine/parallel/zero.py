"""Where the weights live: replicated over the data-parallel ranks (ZeRO 0), or sharded by FSDP2 (ZeRO 1, 2, 3).

Both give the optimizer the same thing: this rank's fp32 master weights with their summed gradients. Gradients are sums,
not means: the loss is divided by the number of tokens in the global batch before.
"""

import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from trimaran.engine.model.init_weights import init_tensor_
from trimaran.engine.model.transformer import Stage
from trimaran.engine.parallel.gradient_reduction import BucketedAllReduce
from trimaran.engine.parallel.world import World
from trimaran.spec import Job
from trimaran.spec.tensors import NamedTensor, stage_tensors

# In fp8 only the layers' GEMMs are.
COMPUTE_DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


@dataclass(frozen=True)
class MasterWeight:
    """One parameter as the optimizer sees it: this rank's part."""

    tensor: NamedTensor
    value: nn.Parameter  # fp32
    parameter: Any  # the module's, in the compute precision; where sharded, a DTensor
    tied_copy: bool  # the last stage's copy of a tied embedding: not counted in the gradient norm, not saved
    sharded: bool  # over the data-parallel ranks

    @property
    def gradient(self) -> Tensor:
        """Complete after Weights.reduce_gradients. In fp32, unless the optimizer takes any dtype."""
        gradient = self.parameter.grad if self.value.grad is None else self.value.grad
        assert isinstance(gradient, Tensor), f"{self.tensor.name} has no gradient"
        return gradient

    def offsets(self, world: World) -> tuple[int, ...]:
        """Where this part begins in the whole tensor."""
        tensor, layout = self.tensor, world.layout
        begins = [0] * len(tensor.shape)
        if self.sharded:  # FSDP2 gives every rank equally many rows, the last ones the rest
            begins[0] = -(-tensor.local_shape(layout.tp)[0] // layout.dp) * world.dp_rank
        if tensor.cut is not None:
            begins[tensor.cut] += tensor.shape[tensor.cut] // layout.tp * world.tp_rank
        return tuple(begins)

    def replicas(self, world: World) -> int:
        """Ranks of a stage that hold the same elements."""
        tensor_copies = world.layout.tp if self.tensor.cut is None else 1
        return tensor_copies * (1 if self.sharded else world.layout.dp)


class Weights(ABC):
    """Of this rank's pipeline stages: created on the meta device, then materialized, then initialized or loaded."""

    sharded: bool  # over the data-parallel ranks
    masters: list[MasterWeight]
    parameters: list[Any]  # of the modules, one per master weight; where sharded, DTensors

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
            fp8=job.precision == "fp8",
        )

    def materialize(self) -> None:
        """Allocate; values are undefined."""
        for module in self.modules:
            module.to_empty(device=self.world.device)
        self.masters = self._master_weights()
        self.parameters = [master.parameter for master in self.masters]

    def _master_weights(self) -> list[MasterWeight]:
        masters = []
        tied_over_stages = self.job.model.tied_embeddings and self.job.layout.stages > 1
        for stage, module in zip(self.stages, self.modules, strict=True):
            parameters = dict(module.named_parameters())
            for tensor in stage_tensors(self.job.model, self.job.layout, stage):
                parameter = parameters.pop(tensor.name)
                tied_copy = tied_over_stages and tensor.name == "head.weight"
                named = NamedTensor("embedding.word", tensor.shape, tensor.cut) if tied_copy else tensor
                masters.append(MasterWeight(named, self._value(parameter), parameter, tied_copy, self.sharded))
            assert not parameters, f"spec.tensors does not know {list(parameters)}"
        return masters

    @abstractmethod
    def _value(self, parameter: Any) -> nn.Parameter:
        """The fp32 tensor behind a module's parameter."""

    def init_weights(self) -> None:
        """By the job's seed."""
        with torch.no_grad():
            for master in self.masters:
                init_tensor_(master.value, master.tensor, master.offsets(self.world), self.job.model, self.job.seed)
        self.sync_compute_weights()

    def zero_grad(self) -> None:
        for master in self.masters:
            master.value.grad = master.parameter.grad = None

    @abstractmethod
    def before_micro_batch(self, index: int, count: int) -> None:
        """Where there is no pipeline (whose schedule does this itself)."""

    def collect_gradients(self) -> None:  # noqa: B027 nothing to do
        """After a backward pass that called no hooks, such as the weight half of a zero-bubble schedule's."""

    @abstractmethod
    def reduce_gradients(self) -> None:
        """After the last micro batch: every master's gradient is the sum over the data-parallel ranks."""

    def sync_compute_weights(self) -> None:  # noqa: B027 by FSDP2, which casts what it gathers
        """After the optimizer: the modules' weights become the new values."""


class ReplicatedWeights(Weights):
    """Modules hold the weights in the compute precision; where that is not fp32, masters are fp32 copies, and gradients
    accumulate there. A gradient of a single micro batch needs no fp32 copy, if the optimizer takes it as it is."""

    sharded = False

    def __init__(self, job: Job, world: World) -> None:
        super().__init__(job, world)
        for module in self.modules:
            module.to(self.dtype)

    def materialize(self) -> None:
        super().materialize()
        for index, parameter in enumerate(self.parameters):
            # The garbage collector cannot see through a hook: a reference cycle by way of one would never be freed.
            parameter.register_post_accumulate_grad_hook(
                partial(ReplicatedWeights._accumulate, weakref.proxy(self), index)
            )
        self.reduction = BucketedAllReduce(self.world.group("dp")) if self.world.layout.dp > 1 else None
        self.is_last_micro_batch = False  # then gradients are complete when they arrive
        self.is_only_micro_batch = False

    def _accumulate(self, index: int, parameter: Tensor) -> None:
        """Hook: a parameter has its gradient of one micro batch."""
        master = self.masters[index]
        if self.dtype != torch.float32 and not (self.is_only_micro_batch and self.optimizer_takes_any_dtype):
            assert parameter.grad is not None
            if master.value.grad is None:
                master.value.grad = parameter.grad.float()
            else:
                master.value.grad.add_(parameter.grad)
            parameter.grad = None
        if self.is_last_micro_batch and self.reduction:
            self.reduction.add(master.gradient)

    def collect_gradients(self) -> None:
        for index, parameter in enumerate(self.parameters):
            if self.dtype != torch.float32 and parameter.grad is not None:
                self._accumulate(index, parameter)

    def before_micro_batch(self, index: int, count: int) -> None:
        self.is_last_micro_batch, self.is_only_micro_batch = index == count - 1, count == 1

    @property
    def optimizer_takes_any_dtype(self) -> bool:
        """And nothing is summed over ranks before it."""
        return uses_fused_adamw(self.job, self.world) and self.world.size == 1

    def _value(self, parameter: Any) -> nn.Parameter:
        is_fp32 = parameter.dtype == torch.float32
        return parameter if is_fp32 else nn.Parameter(torch.empty_like(parameter, dtype=torch.float32))

    def reduce_gradients(self) -> None:
        if self.reduction:
            if not self.is_last_micro_batch:  # under a pipeline nothing was reduced during the backward pass
                for master in self.masters:
                    self.reduction.add(master.gradient)
            self.reduction.finish()
        self.is_last_micro_batch = False

    def sync_compute_weights(self) -> None:
        if self.dtype != torch.float32:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, [master.value for master in self.masters])


class ShardedWeights(Weights):
    """FSDP2 around every block and around the stage. ZeRO 1 and 2 keep the gathered weights for the whole step, 3 frees
    them after each use; 1 reduces gradients after the last micro batch, 2 and 3 after each. Under a pipeline PyTorch
    keeps weights and gradients unsharded until the last micro batch in any case."""

    sharded = True

    def __init__(self, job: Job, world: World) -> None:
        super().__init__(job, world)
        assert world.mesh is not None
        # Inputs are not cast: token weights would overflow in fp16 and lose precision in bf16.
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

    def before_micro_batch(self, index: int, count: int) -> None:
        last, zero = index == count - 1, self.job.layout.zero
        for module in self.modules:
            assert isinstance(module, FSDPModule)
            module.set_requires_gradient_sync(last or zero >= 2)
            module.set_is_last_backward(last or zero >= 2)  # otherwise FSDP2 keeps its last, largest buffer until then
            module.set_reshard_after_backward(last or zero == 3)

    def reduce_gradients(self) -> None:
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            master.value.grad = parameter.grad.to_local()


def uses_fused_adamw(job: Job, world: World) -> bool:
    """Whether the optimizer is engine.kernels.fused_adamw's."""
    return job.optimizer == "fused-adam" and world.device.type == "cuda"


def build_weights(job: Job, world: World) -> Weights:
    sharded = job.layout.zero > 0 and job.layout.dp > 1
    return ShardedWeights(job, world) if sharded else ReplicatedWeights(job, world)
