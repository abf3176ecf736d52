"""Other people's trainers as steps beside ours: nanoGPT and torchtitan 0.2.2, from checkouts in one folder.

Each builds its own model of a Job's shape, its own optimizer and its own step, as its training script does, and takes
the same batches. torchtitan's model is a Llama: its MLP has three matrices of 8/3 of the width, nearly the same work;
`shape` has the exact sizes. Its parts that are not timed (command line, data loading) need not be installed: empty
modules stand in for them.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from trimaran.spec import Job, Model

Train = Callable[[torch.Tensor, torch.Tensor], None]  # of tokens and targets, [rows, seq] each
NOT_TIMED = (  # of torchtitan: its command line and data loading
    "tyro",
    "torchtitan.components.dataloader",
    "torchtitan.components.tokenizer",
    "torchtitan.components.validate",
    "torchtitan.hf_datasets.text_datasets",
)


def nanogpt(job: Job, checkout: Path, device: torch.device, compiled: bool = True) -> Train:
    sys.path.insert(0, str(checkout))
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    model, recipe = job.model, job.recipe
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    config = GPTConfig(
        block_size=model.seq_len,
        vocab_size=model.vocab_rows(1),
        n_layer=model.layers,
        n_head=model.heads,
        n_embd=model.hidden,
        bias=model.bias,
    )
    net = GPT(config).to(device)
    optimizer = net.configure_optimizers(recipe.weight_decay, recipe.learning_rate, recipe.betas, device.type)
    run = torch.compile(net) if compiled else net

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> None:
        for rows, labels in micro_batches(job, tokens, targets):
            with torch.autocast(device.type, torch.bfloat16):
                _, loss = run(rows, labels)
            (loss * len(rows) / len(tokens)).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), recipe.clip or float("inf"))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def torchtitan(job: Job, checkout: Path, device: torch.device, compiled: bool = True) -> Train:
    """As its Trainer does on one device: autocast to bf16, each block and the loss compiled, fused AdamW."""
    sys.path.insert(0, str(checkout))
    sys.modules |= {name: StandIn(name) for name in NOT_TIMED}
    from torchtitan.components.loss import build_cross_entropy_loss  # type: ignore[import-not-found]
    from torchtitan.components.optimizer import build_optimizers  # type: ignore[import-not-found]
    from torchtitan.config import JobConfig  # type: ignore[import-not-found]
    from torchtitan.distributed import ParallelDims, utils  # type: ignore[import-not-found]
    from torchtitan.models.llama3.infra.parallelize import parallelize_llama  # type: ignore[import-not-found]
    from torchtitan.models.llama3.model.args import TransformerModelArgs  # type: ignore[import-not-found]
    from torchtitan.models.llama3.model.model import Transformer  # type: ignore[import-not-found]

    shaped, recipe = shape(job.model), job.recipe
    config = JobConfig()
    config.training.seq_len = shaped.seq_len
    config.compile.enable = compiled
    config.activation_checkpoint.mode = "none"
    config.optimizer.lr, config.optimizer.eps = recipe.learning_rate, recipe.eps
    config.optimizer.beta1, config.optimizer.beta2 = recipe.betas
    config.optimizer.weight_decay = recipe.weight_decay
    config.optimizer.implementation = "fused" if device.type == "cuda" else "for-loop"
    arguments = TransformerModelArgs(
        dim=shaped.hidden,
        n_layers=shaped.layers,
        n_heads=shaped.heads,
        vocab_size=shaped.vocab,
        multiple_of=shaped.ffn_hidden,
        max_seq_len=shaped.seq_len,
    )
    single = ParallelDims(dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=1, ep=1, etp=1, world_size=1)
    with torch.device("meta"):
        net = Transformer(arguments)
    net = parallelize_llama(net, single, config)
    net.to_empty(device=device)
    with torch.no_grad():
        net.init_weights(buffer_device=None)
    net.train()
    if {len(block.feed_forward.w1.weight) for block in net.layers.values()} != {shaped.ffn_hidden}:
        raise SystemExit("torchtitan's MLP is not as wide as it should be")
    optimizers = build_optimizers([net], config.optimizer, single)
    loss_of = build_cross_entropy_loss(config)

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> None:
        optimizers.zero_grad()
        for rows, labels in micro_batches(job, tokens, targets):
            with torch.autocast(device.type, torch.bfloat16):
                predicted = net(rows)
                loss = loss_of(predicted, labels) / targets.numel()
            del predicted
            loss.backward()
        utils.clip_grad_norm_(list(net.parameters()), recipe.clip or float("inf"), foreach=True)
        optimizers.step()

    return step


def shape(model: Model) -> Model:
    """The Llama of torchtitan that does nearly the work of a GPT: 3 x ffn is near 8 x hidden."""
    width = round(8 * model.hidden / 3 / 128) * 128
    return model.replace(
        mlp="swiglu",
        ffn_hidden=width,
        norm="rmsnorm",
        position="rotary",
        bias=False,
        tied_embeddings=False,
        vocab=model.vocab_rows(1),
    )


def micro_batches(job: Job, tokens: torch.Tensor, targets: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    return zip(tokens.split(job.layout.micro_batch), targets.split(job.layout.micro_batch), strict=True)


class Anything(type):
    """A class that has whatever is asked of it, as classes of the same kind."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})

    def __getitem__(cls, item: Any) -> Any:
        return cls


class StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})
