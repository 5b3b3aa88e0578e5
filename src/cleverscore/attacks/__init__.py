"""Attacks: adversarial inputs, whose distances are upper bounds on the minimum distortion."""
