"""What PaddlePaddle writes that is no plain pickle."""
