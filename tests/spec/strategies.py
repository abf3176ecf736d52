"""Hypothesis strategies for valid Jobs, Trials and their parts. Used by every test that says 'for any Job'."""

from hypothesis import strategies as st

from trimaran.spec import (
    Batch,
    Data,
    Job,
    Layout,
    LossScale,
    Model,
    Outcome,
    Ramp,
    Recipe,
    Saving,
    Setup,
    Source,
    Trial,
    Validation,
    presets,
)

names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)
positive = st.floats(1e-3, 1e9, allow_nan=False)


@st.composite
def models(draw: st.DrawFn, tp: int = 1) -> Model:
    kv_heads = tp * draw(st.integers(1, 4))
    heads = kv_heads * draw(st.integers(1, 3))
    mlp = draw(st.sampled_from(["gelu", "swiglu"]))
    return Model(
        name=draw(names),
        layers=draw(st.integers(1, 12)),
        hidden=heads * 2 * draw(st.integers(1, 32)),
        heads=heads,
        kv_heads=kv_heads,
        ffn_hidden=tp * draw(st.integers(1, 512)),
        vocab=draw(st.integers(1, 300_000)),
        seq_len=draw(st.sampled_from([16, 1024, 2048, 8192])),
        mlp=mlp,
        norm=draw(st.sampled_from(["layernorm", "rmsnorm"])),
        position=draw(st.sampled_from(["learned", "alibi", "rotary"])),
        rotary_base=draw(positive),
        bias=draw(st.booleans()),
        embedding_norm=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        objective=draw(st.sampled_from(["causal", "prefix"])),
    )


scales = st.builds(LossScale, initial=st.floats(1, 1e9), window=st.integers(1, 5000), minimum=st.floats(0.1, 1.0))
recipes = st.builds(
    Recipe,
    learning_rate=positive,
    warmup_samples=st.integers(0, 1000),
    schedule=st.sampled_from(["constant", "linear", "cosine"]),
    decay_samples=st.none() | st.integers(1000, 10**9),
    undecayed=st.sets(st.sampled_from(["norms", "biases", "embeddings"])).map(lambda names: tuple(sorted(names))),
    loss_scale=scales,
    betas=st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2),
    eps=positive,
    weight_decay=st.just(0.0) | positive,
    clip=st.none() | positive,
)
savings = st.builds(
    Saving,
    folder=st.none() | names,
    every=st.none() | st.integers(1, 100),
    minutes=st.none() | positive,
    asynchronous=st.booleans(),
)
validations = st.builds(Validation, every=st.none() | st.integers(1, 100), samples=st.integers(1, 100))
data_sources = names | st.dictionaries(names, positive, min_size=1, max_size=3)
data = st.builds(
    Data,
    source=data_sources,
    validation=st.floats(0, 1, exclude_max=True),
    documents=st.just("apart"),
    prefix=st.sampled_from(["row", "document"]),
    loss_on=st.sampled_from(["targets", "all"]),
) | st.builds(Data, source=data_sources)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Valid Jobs of our own trainer: shapes are built to fit the layout."""
    dp, tp, pp = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 3]))
    micro_batch, micro_batches = draw(st.integers(1, 4)), draw(st.integers(pp, pp + 4))
    unit = dp * micro_batch
    size = unit * micro_batches
    steps = draw(st.integers(0, 3))
    ramp = Ramp(start=size, increment=unit, samples=draw(st.integers(1, 10**9))) if steps else None
    model = draw(models(tp)).replace(layers=pp * draw(st.integers(1, 4)))
    cluster = presets.cluster(draw(st.sampled_from(["jean-zay-a100-80gb", "hgx-h200", "fugaku"])))
    return Job(
        name=draw(names),
        model=model,
        cluster=cluster.replace(nodes=dp * pp, devices_per_node=tp),
        trainer=presets.trainer("trimaran"),
        layout=Layout(dp=dp, tp=tp, pp=pp, micro_batch=micro_batch, zero=draw(st.sampled_from([0, 1, 2, 3]))),
        batch=Batch(size=size + steps * unit, ramp=ramp),
        precision="fp32",
        recipe=draw(recipes),
        saving=draw(savings),
        validation=draw(validations),
        data=draw(data),
        seed=draw(st.integers(0, 2**32)),
        environment=draw(st.dictionaries(names, names, max_size=2)),
    )


outcomes = st.builds(
    Outcome,
    status=st.sampled_from(["ok", "oom", "hang", "fail", "timeout", "lost"]),
    reason=names,
    seconds=st.none() | positive,
    memory_gib=st.none() | positive,
    memory_by_stage_gib=st.lists(positive, max_size=3).map(tuple),
    tflops=st.none() | positive,
    iterations=st.none() | st.integers(0, 10**6),
)
sources = st.builds(Source, kind=st.sampled_from(["run", "log", "notes", "csv"]), file=names, section=names)


@st.composite
def trials(draw: st.DrawFn) -> Trial:
    job = draw(jobs())
    return Trial(
        id=draw(st.text("0123456789abcdef", min_size=16, max_size=16)),
        setup=Setup.of_job(job),
        job=draw(st.none() | st.just(job)),
        outcome=draw(outcomes),
        source=draw(sources),
    )
