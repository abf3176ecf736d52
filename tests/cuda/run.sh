#!/bin/sh
# Every test that needs an NVIDIA GPU, and a short step of each kind, in one command; the goal is 8 minutes on one H200.
# Needs torch with CUDA, pytest and the package's own dependencies; nothing else is installed or downloaded.
set -e
cd "$(dirname "$0")/../.."
PYTHONPATH="$PWD/src:$PWD:$PYTHONPATH"
export PYTHONPATH
python -m pytest tests/cuda -p no:cacheprovider
python -m trimaran.cli.main train gpt-1b3-h200 --steps 10 | tail -n 1
python benchmarks/gpu_memory.py --micro-batches 8 --largest
