"""safetensors, and the indexes of models that are split over several of them."""
