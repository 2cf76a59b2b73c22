"""A running llama.cpp and its native functions. Import the module you need: ``server``, ``client``, ``ggml``, ..."""
