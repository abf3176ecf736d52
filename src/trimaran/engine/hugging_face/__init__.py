"""Our weights as `transformers` has them, and theirs as ours: GPT-2, BLOOM and Llama.

Each family is one description (gpt2.py, bloom.py, llama.py) that both directions read, so they cannot disagree. May
import what the engine may; `transformers` itself is not needed. Start with family.py.
"""
