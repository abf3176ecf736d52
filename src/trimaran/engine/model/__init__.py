"""The decoder-only transformer as one pipeline stage of one tensor rank: layers, loss, initial weights, generation.
Start at transformer.py.
"""
