"""The policy's weights: tensors, published versions, adapters, and the versions that are needed."""
