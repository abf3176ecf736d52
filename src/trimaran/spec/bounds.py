"""Bounds: the types of counts and quantities, each with the largest value that makes sense.

A bound is ten times or more above what was built or announced by 2026. It keeps every loop over a field short, the
parameters of a stage within 64-bit integers, and seconds and bytes within floating point.
"""

from typing import Annotated

from pydantic import Field

MOST_LAYERS = 2**14  # DeepNet (arXiv 2203.00555) has 1,000
MOST_WIDTH = 2**20  # GPT-3 has 12,288, PaLM 18,432; layers x 12 width^2 stays below 2^63
MOST_FFN_WIDTH = 2**22  # 4 x width, as in GPT
MOST_TOKENS = 2**27  # of a sample: 10 million are announced (Llama 4), 100 million were shown
MOST_VOCABULARY = 2**31  # Megatron's indexed datasets store tokens as int32
MOST_DEVICES = 10_000_000  # the largest machines have 100 to 500 thousand
MOST_BATCH = 2**27  # samples of a step; GPT-3 has 1,536
MOST_RAMP_SIZES = 10_000  # different batch sizes of a ramp-up, each planned by itself; GPT-3's has 96
MOST_STEPS = 10**9  # iterations; runs have a million
MOST_SAMPLES = 10**15  # of a run: a thousand times the text there is
MOST = 1e12  # of a quantity in its unit: bytes per parameter, GB/s, TFLOP/s, seconds
MOST_HYPERPARAMETER = 1e30  # a rate that diverges, a loss scale that overflows at first: nothing loops over these
LEAST = 1e-12  # of a quantity that something is divided by

Layers = Annotated[int, Field(gt=0, le=MOST_LAYERS)]
LayersOrZero = Annotated[int, Field(ge=0, le=MOST_LAYERS)]  # of a pipeline stage
Width = Annotated[int, Field(gt=0, le=MOST_WIDTH)]  # hidden, heads
FfnWidth = Annotated[int, Field(gt=0, le=MOST_FFN_WIDTH)]
SequenceLength = Annotated[int, Field(gt=0, le=MOST_TOKENS)]
Vocabulary = Annotated[int, Field(gt=0, le=MOST_VOCABULARY)]
Devices = Annotated[int, Field(gt=0, le=MOST_DEVICES)]  # or nodes, ranks of an axis, cores, SMs
BatchSize = Annotated[int, Field(gt=0, le=MOST_BATCH)]
Steps = Annotated[int, Field(gt=0, le=MOST_STEPS)]
StepsOrZero = Annotated[int, Field(ge=0, le=MOST_STEPS)]
Samples = Annotated[int, Field(gt=0, le=MOST_SAMPLES)]
SamplesOrZero = Annotated[int, Field(ge=0, le=MOST_SAMPLES)]
ZeroStage = Annotated[int, Field(ge=0, le=3)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # as torch and NumPy take it
Quantity = Annotated[float, Field(ge=LEAST, le=MOST)]
QuantityOrZero = Annotated[float, Field(ge=0, le=MOST)]
Hyperparameter = Annotated[float, Field(gt=0, le=MOST_HYPERPARAMETER)]
Spread = Annotated[float, Field(ge=0, le=10)]  # of a logarithm: e^10 is a factor of 22 thousand
