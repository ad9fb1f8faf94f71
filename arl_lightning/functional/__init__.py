"""Pure functions on tensors and floats: masks, log-probs, ratios, divergences, advantages, detection."""
