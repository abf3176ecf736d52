"""Small Jobs for the engine's tests, on a CPU cluster with made-up figures."""

from typing import Any

from trimaran.spec import Job, presets
from trimaran.spec.layout import Layout

GPT = {"layers": 4, "hidden": 32, "heads": 4, "vocab": 200, "seq_len": 16}
BLOOM = GPT | {"position": "alibi", "embedding_norm": True}
LLAMA = GPT | {"position": "rotary", "norm": "rmsnorm", "mlp": "swiglu", "ffn_hidden": 48, "heads": 8, "kv_heads": 4}

PEAK = {"fp32": 0.1, "bf16": 0.1, "fp16": 0.1, "fp8": 0.1}
CPU = {"name": "cpu-test", "peak_tflops": PEAK, "memory_gib": 4, "memory_gb_per_s": 10, "units": 1}
LINK = {"name": "shared memory", "gb_per_s": 2.0, "latency_us": 50.0}


def job_of(model: dict[str, Any], layout: dict[str, Any], **rest: Any) -> Job:
    cluster = {
        "name": "here",
        "device": CPU,
        "nodes": 1,
        "devices_per_node": Layout(**layout).devices,
        "inside": LINK,
        "between": LINK,
        "context_gib": 0.3,
    }
    values = {"precision": "fp32", "batch": {"size": 8}, "recipe": {"learning_rate": 1e-3}, **rest}
    trainer = presets.trainer("trimaran").model_dump()
    return Job.of(
        {"model": model, "cluster": cluster, "trainer": trainer, "layout": layout, **values}, "The test's job"
    )
