"""Operations that PyTorch lacks or does slower: Triton kernels (*_triton.py) behind a function of the same name each,
fp8 GEMMs, and torch.compile of the layers.
"""
