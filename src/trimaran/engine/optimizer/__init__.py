"""From summed gradients to new weights: gradient norm and clipping, fp16 loss scaling, Adam. Start at adam.py."""
