"""The files of PaddlePaddle that are no plain pickles."""
