"""Weights of GPT-2, BLOOM and Llama in the format of Hugging Face's `transformers`, imported and exported.

Each family is one description (families.py) that both directions read, so they cannot disagree; `transformers` itself
is not needed. Start at family.py.
"""
