"""The usable number of positions of a model; engine and trainer must agree on it."""

from typing import Any


def positions_used(config: Any) -> int:
    """Return the usable positions of a sequence by a model's configuration; 0 if it names none.

    A sliding window limits them, since the engine has one mask for all layers. So does the length
    up to which longrope uses its first frequencies: beyond it, the longest row of a batch
    determines the frequencies of all its rows (transformers, `dynamic_rope_update`).
    """
    positions = int(getattr(config, "max_position_embeddings", 0) or 0)
    slides = any("sliding" in kind for kind in getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    bounds = [positions, *_first_frequencies(config)]
    if window and (slides or not hasattr(config, "layer_types")):
        bounds.append(int(window))
    return min((bound for bound in bounds if bound > 0), default=0)


def _first_frequencies(config: Any) -> list[int]:
    """Return the lengths of longrope's first frequencies: one, or one for each kind of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(each for each in rope.values() if isinstance(each, dict))]
    lengths = [
        each.get("original_max_position_embeddings")
        or getattr(config, "original_max_position_embeddings", None)
        for each in kinds
        if each.get("rope_type") == "longrope"
    ]
    return [int(length) for length in lengths if length]
